#include "runtime/generation/state_moves.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "graph/digest.h"
#include "graph/error.h"
#include "graph/plan_moves.h"
#include "models/memory/memory_meter.h"
#include "models/run/scalar_types.h"
#include "models/safetensors/safetensors.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_state.h"
#include "runtime/checkpoint/tensors_by_name.h"
#include "runtime/stage/partition.h"
#include "runtime/stage/streams.h"
#include "runtime/update/update_rule.h"
#include "runtime/worker/worker.h"

namespace pipewright {
namespace {

// Of parameters and buffers: the ranks that hold them, replica 0 of the first stage that does first.
Holders holders_of(const Graph& graph, const Plan& plan) {
  std::set<std::string> known;
  for (const Parameter& parameter : graph.parameters) known.insert(parameter.name);
  for (const Buffer& buffer : graph.buffers) known.insert(buffer.name);
  Holders holders;
  const auto interfaces = partition(graph, plan);
  for (size_t s = 0; s < interfaces.size(); ++s) {
    std::set<std::string> names;
    for (const size_t node : interfaces[s].nodes) {
      for (const std::string& name : graph.nodes[node].reads())
        if (known.count(name)) names.insert(name);
    }
    for (const std::string& name : names) {
      std::vector<int64_t>& ranks = holders[name];
      for (const int64_t rank : plan.stages[s].ranks)
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    }
  }
  return holders;
}

// A parameter or a buffer with all that goes along with it.
struct Holding {
  std::vector<StatePart> parts;
  bool equal_on_replicas = true;
};

std::map<std::string, Holding> holdings_of(const Graph& graph, const OptimizerSettings& optimizer) {
  std::map<std::string, Holding> holdings;
  for (const Parameter& parameter : graph.parameters) {
    const at::ScalarType dtype = scalar_type_of(parameter.type.dtype);
    std::vector<StatePart>& parts = holdings[parameter.name].parts;
    parts.push_back({parameter.name, dtype, parameter.type.shape});
    if (!parameter.trainable) continue;
    parts.push_back({slot_tensor(kUpdatesSlot, parameter.name), at::kLong, {}});
    const std::vector<std::string> slots = slot_names(optimizer);
    for (size_t i = 0; i < slots.size(); ++i)
      parts.push_back({slot_tensor(slots[i], parameter.name), dtype,
                       slot_shape(optimizer, i, parameter.name, parameter.type.shape)});
  }
  for (const Buffer& buffer : graph.buffers) {
    const at::ScalarType dtype = scalar_type_of(buffer.type.dtype);
    holdings[buffer.name] = {{{buffer.name, dtype, buffer.type.shape}}, at::isFloatingType(dtype)};
  }
  return holdings;
}

// Each part begins where a tensor's memory may.
constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

at::Tensor bytes_tensor(int64_t bytes) { return at::empty({bytes}, at::TensorOptions(at::kByte)); }

// Of an optimizer that has made no update yet there are no slots.
at::Tensor part_of(const NamedState& state, const StatePart& part) {
  const auto found = state.find(part.name);
  if (found == state.end()) {
    PW_CHECK(part.name.rfind(kOptimizerPrefix, 0) == 0, part.name << " is to be sent and is not there");
    return at::zeros(part.shape, at::TensorOptions(part.dtype));
  }
  const at::Tensor& tensor = found->second;
  PW_CHECK(tensor.scalar_type() == part.dtype && tensor.sizes().equals(part.shape), part.name);
  return tensor.contiguous();
}

at::Tensor packed(const NamedState& state, const StateMove& move) {
  const at::Tensor message = bytes_tensor(move.bytes());
  auto* at = static_cast<char*>(message.data_ptr());
  for (const StatePart& part : move.parts) {
    const at::Tensor tensor = part_of(state, part);
    std::memcpy(at, tensor.data_ptr(), tensor.nbytes());
    const auto length = static_cast<size_t>(aligned(part.bytes()));
    std::memset(at + tensor.nbytes(), 0, length - tensor.nbytes());
    at += length;
  }
  return message;
}

void unpack(const at::Tensor& message, const StateMove& move, NamedState& state) {
  const auto* at = static_cast<const char*>(message.data_ptr());
  for (const StatePart& part : move.parts) {
    const bool of_optimizer = part.name.rfind(kOptimizerPrefix, 0) == 0;
    const MemoryScope scope(of_optimizer ? MemoryPurpose::kOptimizer : MemoryPurpose::kWeights);
    const at::Tensor tensor = at::empty(part.shape, at::TensorOptions(part.dtype));
    std::memcpy(tensor.data_ptr(), at, tensor.nbytes());
    state[part.name] = tensor;
    at += aligned(part.bytes());
  }
}

std::string digest_of_message(const at::Tensor& message) {
  Digest digest;
  digest.add(message.data_ptr(), message.nbytes());
  return digest.text();
}

at::Tensor bytes_of(const std::string& text) {
  const at::Tensor tensor = bytes_tensor(static_cast<int64_t>(text.size()));
  std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

class FromPeers : public StateSource, private TensorsByName {
 public:
  FromPeers(NamedState state, OptimizerSettings optimizer)
      : state_(std::move(state)), optimizer_(std::move(optimizer)) {}
  std::optional<StageState> state_of(int64_t, int64_t, const StageProgram& program) override {
    return load_stage_state(*this, "the state of the plan before", program, optimizer_);
  }

 private:
  bool has(const std::string& name) const override { return state_.count(name) > 0; }
  // Several stages of a rank may have copies of a tied parameter.
  at::Tensor take(const std::string& name) override {
    const at::Tensor tensor = state_.at(name).detach();
    return taken_.insert(name).second ? tensor : tensor.clone();
  }

  NamedState state_;
  std::set<std::string> taken_;
  const OptimizerSettings optimizer_;
};

}  // namespace

int64_t StatePart::bytes() const {
  int64_t bytes = static_cast<int64_t>(at::elementSize(dtype));
  for (const int64_t extent : shape) bytes *= extent;
  return bytes;
}

int64_t StateMove::bytes() const {
  int64_t bytes = 0;
  for (const StatePart& part : parts) bytes += aligned(part.bytes());
  return bytes;
}

std::vector<StateMove> state_moves(const Graph& graph, const OptimizerSettings& optimizer, const Plan& last,
                                   const Plan& next) {
  const auto holdings = holdings_of(graph, optimizer);
  const auto thing = [&](const std::string& name) {
    const Holding& holding = holdings.at(name);
    HeldThing held{0, holding.equal_on_replicas};
    for (const StatePart& part : holding.parts) held.bytes += aligned(part.bytes());
    return held;
  };
  std::vector<StateMove> moves;
  for (const PlanMove& move : plan_moves(holders_of(graph, last), holders_of(graph, next), thing)) {
    moves.push_back({move.from, move.to, {}});
    for (const std::string& name : move.names) {
      const std::vector<StatePart>& parts = holdings.at(name).parts;
      moves.back().parts.insert(moves.back().parts.end(), parts.begin(), parts.end());
    }
  }
  return moves;
}

NamedState state_of(Worker& worker, int64_t n) {
  NamedState named;
  for (size_t i = 0; i < worker.stage_count(); ++i) {
    StageReplica& stage = worker.stage(i);
    const StageState state = stage.state_before(n);
    PW_CHECK(state.older.empty(), "minibatches are in flight where a plan changes");
    for (auto& [name, tensor] : stage_tensors(stage.program(), state)) named.emplace(name, tensor);
  }
  return named;
}

NamedState move_state(Transport* transport, const std::vector<StateMove>& moves, const NamedState& own,
                      const std::function<void()>& between) {
  NamedState state = own;
  if (moves.empty()) return state;
  PW_CHECK(transport, "a world of one rank has nothing to move");
  constexpr int64_t kMessage = 0, kAnswer = 1;
  const auto tag = [](int64_t part) { return StreamTags(1).of(Stream::kState, 0, part); };
  const auto pause = [&] {
    if (between) between();
  };
  struct Message {
    const StateMove* move;
    at::Tensor bytes, answer;
    std::string digest;
    std::unique_ptr<Request> request, answered;
  };
  const size_t digest_bytes = digest_of_message(bytes_tensor(0)).size();
  std::vector<Message> in, out;
  const MemoryScope scope(MemoryPurpose::kMessages);
  for (const StateMove& move : moves) {
    if (move.to != transport->rank()) continue;
    in.push_back({&move, bytes_tensor(move.bytes()), {}, "", {}, {}});
    in.back().request = transport->receive(in.back().bytes, move.from, tag(kMessage));
  }
  pause();
  for (const StateMove& move : moves) {
    if (move.from != transport->rank()) continue;
    out.push_back({&move, packed(own, move), bytes_tensor(static_cast<int64_t>(digest_bytes)), "", {}, {}});
    Message& message = out.back();
    message.request = transport->send(message.bytes, move.to, tag(kMessage));
    message.answered = transport->receive(message.answer, move.to, tag(kAnswer));
    message.digest = digest_of_message(message.bytes);
  }
  pause();
  for (Message& message : in) {
    message.request->wait();
    unpack(message.bytes, *message.move, state);
    message.answer = bytes_of(digest_of_message(message.bytes));
    message.bytes.reset();
    message.answered = transport->send(message.answer, message.move->from, tag(kAnswer));
  }
  pause();
  for (Message& message : out) {
    message.request->wait();
    message.answered->wait();
    if (bytes_of(message.digest).equal(message.answer)) continue;
    throw RunError("the weights that rank " + std::to_string(message.move->from) + " sent to rank " +
                       std::to_string(message.move->to) + " have not come as they were sent",
                   "Does the memory of both hosts work, and their network? The last checkpoint is intact.");
  }
  for (Message& message : in) message.answered->wait();
  return state;
}

std::unique_ptr<StateSource> state_from_peers(NamedState state, OptimizerSettings optimizer) {
  return std::make_unique<FromPeers>(std::move(state), std::move(optimizer));
}

}  // namespace pipewright
