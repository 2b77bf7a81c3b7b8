#include "models/run/interpreter.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "graph/error.h"
#include "graph/printable.h"
#include "models/memory/memory_meter.h"
#include "models/run/arguments.h"
#include "models/run/operator_guards.h"
#include "models/run/operators.h"
#include "models/run/passes.h"
#include "models/run/random_key.h"

namespace pipewright {
namespace {

/// Where a tensor argument comes from at run time.
struct Source {
  enum class Kind : uint8_t { kValue, kParameter, kBuffer, kNone } kind = Kind::kNone;
  bool last = false;  ///< of a value: nobody reads it afterwards, it may be moved out
  uint32_t index = 0;
};

struct Fill {
  TensorPlace::Kind kind = TensorPlace::Kind::kTensor;
  size_t position = 0;
  std::vector<Source> sources;
};

constexpr uint32_t kDropped = UINT32_MAX;

struct Step {
  c10::OperatorHandle op;
  OperatorGuard guard = nullptr;
  std::vector<c10::IValue> stack = {};  ///< literals; the rest is filled in
  std::vector<Fill> fills = {};
  std::vector<uint32_t> results = {};  ///< slot of each output, or kDropped
  bool random = false;
  uint64_t name_hash = 0;
  bool gradient = true;
  bool without_autocast = false;
  std::optional<at::ScalarType> autocast = {};  ///< the node's own
  bool constant = false;                        ///< depends on nothing: runs in the first forward only
  std::string label = {};                       ///< for messages: node 'conv1' (features.0, aten::conv2d)
};

/// A device's default generator with another one's state in it: what draws from the default draws from that.
class BorrowedStream {
 public:
  BorrowedStream(at::Generator generator, const at::Generator& stream)
      : generator_(std::move(generator)), own_(generator_.graphsafe_get_state()) {
    generator_.graphsafe_set_state(stream);
  }
  ~BorrowedStream() { generator_.graphsafe_set_state(own_); }
  BorrowedStream(const BorrowedStream&) = delete;
  BorrowedStream& operator=(const BorrowedStream&) = delete;

 private:
  at::Generator generator_;
  at::Generator own_;
};

/// Autocast on this thread. The backward runs without: autograd has noted the casts. Without the
/// cache of casts, which all threads of the process share: whoever empties it takes the casts of ranks that
/// are other threads away, and how often a weight that is read twice is cast would depend on the timing.
class AutocastScope {
 public:
  AutocastScope(at::ScalarType dtype, at::DeviceType device) : device_(device) {
    was_on_ = at::autocast::is_autocast_enabled(device_);
    old_dtype_ = at::autocast::get_autocast_dtype(device_);
    was_cached_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, dtype);
  }
  ~AutocastScope() {
    at::autocast::set_autocast_cache_enabled(was_cached_);
    at::autocast::set_autocast_enabled(device_, was_on_);
    at::autocast::set_autocast_dtype(device_, old_dtype_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool was_on_ = false;
  bool was_cached_ = true;
  at::ScalarType old_dtype_ = at::kBFloat16;
};

/// The file's nodes say "cpu", or nothing where a tensor is made of no other.
void set_device(const c10::FunctionSchema& schema, at::Device device, std::vector<c10::IValue>& stack) {
  if (device.is_cpu()) return;
  const auto& arguments = schema.arguments();
  const bool made_of_tensors =
      std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
        return argument.type()->str().find("Tensor") != std::string::npos;  // and "Tensor?", "Tensor[]"
      });
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "device" && (stack[i].isDevice() || (stack[i].isNone() && !made_of_tensors)))
      stack[i] = device;
  }
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string shape_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = std::string(c10::toString(tensor.scalar_type())) + "(";
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i ? ", " : "") + std::to_string(tensor.size(i));
  return text + ")";
}

}  // namespace

struct Segment::Implementation {
  std::vector<size_t> nodes;
  std::vector<std::string> inputs, parameters, buffers, outputs;
  std::vector<Step> steps;
  std::vector<size_t> random;  ///< positions of the steps that draw
  size_t value_count = 0;      ///< slots; the first inputs.size() are the inputs
  std::vector<uint32_t> output_slots;
  size_t deepest_stack = 0;
  bool autocast = false;
  std::vector<uint32_t> constant_slots;       ///< made by constant steps, read by others or handed out
  mutable std::vector<at::Tensor> constants;  ///< by constant_slots; none before the first forward has ended
  at::Device device = at::kCPU;

  at::Tensor take(const Source& source, std::vector<at::Tensor>& values,
                  const std::vector<at::Tensor>& parameter_tensors,
                  const std::vector<at::Tensor>& buffer_tensors) const {
    switch (source.kind) {
      case Source::Kind::kValue:
        return source.last ? std::move(values[source.index]) : values[source.index];
      case Source::Kind::kParameter:
        return parameter_tensors[source.index];
      case Source::Kind::kBuffer:
        return buffer_tensors[source.index];
      case Source::Kind::kNone:
        break;
    }
    return at::Tensor();
  }
};

namespace {

/// Reports what an operator threw as ours: one line that says where, with the shapes of what it was given.
[[noreturn]] void rethrow(const Step& step, const c10::Stack& stack, const std::string& message) {
  std::string given;
  for (const auto& fill : step.fills) {
    if (fill.position >= stack.size()) break;
    const c10::IValue& value = stack[fill.position];
    const std::string& name = step.op.schema().arguments()[fill.position].name();
    if (value.isTensor()) given += (given.empty() ? "" : ", ") + name + " " + shape_text(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& one : value.toTensorVector())
        given += (given.empty() ? "" : ", ") + name + " " + shape_text(one);
  }
  const bool memory = message.find("allocate memory") != std::string::npos;
  throw RunError(
      printable(step.label + " failed: " + first_line(message) + (given.empty() ? "" : "; given " + given)),
      memory ? "Likely cause: the minibatch does not fit the memory. Next: a smaller --batch-size, or a plan "
               "with more stages."
             : "");
}

}  // namespace

std::recursive_mutex& generator_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

Segment::Segment(const Graph& graph, const std::vector<size_t>& nodes, std::vector<std::string> outputs,
                 at::Device device)
    : implementation_(std::make_unique<Implementation>()) {
  Implementation& self = *implementation_;
  self.nodes = nodes;
  self.outputs = std::move(outputs);
  self.autocast = graph.autocast.has_value();
  self.device = device;

  // All names of the graph: values in the order in which they come to be, parameters, buffers.
  std::unordered_map<std::string, size_t> value_rank, parameter_rank, buffer_rank;
  for (const auto& name : graph.inputs) value_rank.emplace(name, value_rank.size());
  for (const auto& node : graph.nodes)
    for (const auto& name : node.outputs) value_rank.emplace(name, value_rank.size());
  for (size_t i = 0; i < graph.parameters.size(); ++i) parameter_rank.emplace(graph.parameters[i].name, i);
  for (size_t i = 0; i < graph.buffers.size(); ++i) buffer_rank.emplace(graph.buffers[i].name, i);

  // What comes from outside, in graph order.
  std::unordered_set<std::string> made;
  std::map<size_t, std::string> inputs, parameters, buffers;
  std::vector<PreparedArguments> prepared;
  for (size_t i = 0; i < nodes.size(); ++i) {
    PW_CHECK_LT(nodes[i], graph.nodes.size());
    if (i > 0) PW_CHECK_LT(nodes[i - 1], nodes[i]);
    const Node& node = graph.nodes[nodes[i]];
    Step step{.op = find_operator(node)};
    step.guard = guard_of(step.op.schema());
    step.label = label_of(node);
    step.name_hash = name_hash(node.name);
    step.random = draws_numbers(node, step.op);
    if (step.random) self.random.push_back(i);
    step.gradient = node.gradient;
    step.without_autocast = node.autocast == "off";
    if (!node.autocast.empty() && !step.without_autocast)
      step.autocast = node.autocast == "float16" ? at::kHalf : at::kBFloat16;
    prepared.push_back(prepare_arguments(node, step.op.schema(), step.label));
    set_device(step.op.schema(), device, prepared.back().stack);
    for (const auto& place : prepared.back().places) {
      for (const auto& name : place.names) {
        if (name.empty() && place.kind == TensorPlace::Kind::kOptionalTensors) continue;
        if (const auto p = parameter_rank.find(name); p != parameter_rank.end()) {
          parameters.emplace(p->second, name);
        } else if (const auto b = buffer_rank.find(name); b != buffer_rank.end()) {
          buffers.emplace(b->second, name);
        } else if (const auto v = value_rank.find(name); v == value_rank.end()) {
          throw InputError(step.label + " reads '" + name + "', which nothing in graph '" + graph.name +
                           "' makes");
        } else if (!made.count(name)) {
          inputs.emplace(v->second, name);
        }
      }
    }
    const auto& returns = step.op.schema().returns();
    for (const auto& returned : returns)
      if (returned.type()->kind() != c10::TypeKind::TensorType &&
          !returned.type()->isSubtypeOf(*c10::ListType::ofTensors()))
        throw InputError(step.label + " makes a " + returned.type()->str() +
                         "; only tensors can be values of a graph");
    const bool lists = std::any_of(returns.begin(), returns.end(), [](const c10::Argument& returned) {
      return returned.type()->kind() == c10::TypeKind::ListType;
    });
    if (!lists && returns.size() != node.outputs.size())
      throw InputError(step.label + " names " + std::to_string(node.outputs.size()) +
                       " outputs; the operator makes " + std::to_string(returns.size()));
    made.insert(node.outputs.begin(), node.outputs.end());
    self.steps.push_back(std::move(step));
  }
  for (const auto& name : self.outputs) {
    const auto v = value_rank.find(name);
    PW_CHECK(v != value_rank.end(), "output '" << name << "' is no value of graph '" << graph.name << "'");
    if (!made.count(name)) inputs.emplace(v->second, name);
  }

  // Slots.
  std::unordered_map<std::string, uint32_t> slots, parameter_slots, buffer_slots;
  for (const auto& [rank, name] : inputs) {
    slots.emplace(name, slots.size());
    self.inputs.push_back(name);
  }
  for (const auto& [rank, name] : parameters) {
    parameter_slots.emplace(name, parameter_slots.size());
    self.parameters.push_back(name);
  }
  for (const auto& [rank, name] : buffers) {
    buffer_slots.emplace(name, buffer_slots.size());
    self.buffers.push_back(name);
  }
  std::unordered_set<std::string> read;
  for (const auto& arguments : prepared)
    for (const auto& place : arguments.places) read.insert(place.names.begin(), place.names.end());
  read.insert(self.outputs.begin(), self.outputs.end());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& name : graph.nodes[nodes[i]].outputs) {
      uint32_t slot = kDropped;
      if (read.count(name)) slot = slots.emplace(name, slots.size()).first->second;
      self.steps[i].results.push_back(slot);
    }
  }
  self.value_count = slots.size();
  for (const auto& name : self.outputs) self.output_slots.push_back(slots.at(name));

  // Constants that are kept are those that another step reads or that are handed out.
  std::vector<bool> kept(self.value_count, false);
  if (graph.fold_constants) {
    const std::vector<bool> constant = constant_nodes(graph, nodes);
    std::unordered_set<std::string> wanted(self.outputs.begin(), self.outputs.end());
    for (size_t i = 0; i < nodes.size(); ++i) {
      self.steps[i].constant = constant[i];
      if (constant[i]) continue;
      for (const auto& place : prepared[i].places) wanted.insert(place.names.begin(), place.names.end());
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!constant[i]) continue;
      for (const auto& name : graph.nodes[nodes[i]].outputs) {
        if (wanted.count(name) == 0) continue;
        kept[slots.at(name)] = true;
        self.constant_slots.push_back(slots.at(name));
      }
    }
  }

  // Sources; from the end to the start, so that the first reader met is the last one to run.
  std::vector<bool> needed = std::move(kept);
  for (const uint32_t slot : self.output_slots) needed[slot] = true;
  for (size_t i = nodes.size(); i-- > 0;) {
    Step& step = self.steps[i];
    step.stack = std::move(prepared[i].stack);
    self.deepest_stack = std::max(self.deepest_stack, step.stack.size());
    for (auto& place : prepared[i].places) {
      Fill fill{place.kind, place.position, {}};
      for (const auto& name : place.names) {
        if (const auto p = parameter_slots.find(name); p != parameter_slots.end())
          fill.sources.push_back({Source::Kind::kParameter, false, p->second});
        else if (const auto b = buffer_slots.find(name); b != buffer_slots.end())
          fill.sources.push_back({Source::Kind::kBuffer, false, b->second});
        else if (const auto v = slots.find(name); v != slots.end())
          fill.sources.push_back({Source::Kind::kValue, false, v->second});
        else
          fill.sources.push_back({});
      }
      step.fills.push_back(std::move(fill));
    }
    for (auto fill = step.fills.rbegin(); fill != step.fills.rend(); ++fill) {
      for (auto source = fill->sources.rbegin(); source != fill->sources.rend(); ++source) {
        if (source->kind != Source::Kind::kValue || needed[source->index]) continue;
        source->last = true;
        needed[source->index] = true;
      }
    }
  }
}

Segment::~Segment() = default;
Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;

const std::vector<size_t>& Segment::nodes() const { return implementation_->nodes; }
const std::vector<std::string>& Segment::inputs() const { return implementation_->inputs; }
const std::vector<std::string>& Segment::parameters() const { return implementation_->parameters; }
const std::vector<std::string>& Segment::buffers() const { return implementation_->buffers; }
const std::vector<std::string>& Segment::outputs() const { return implementation_->outputs; }
const std::string& Segment::label(size_t position) const { return implementation_->steps.at(position).label; }
const std::vector<size_t>& Segment::random_nodes() const { return implementation_->random; }
const std::vector<at::Tensor>& Segment::constants() const { return implementation_->constants; }

uint64_t Segment::seed_of(size_t i, RandomKey key) const {
  const Step& step = implementation_->steps[implementation_->random.at(i)];
  return stream_key(key.seed, key.minibatch, step.name_hash);
}

std::vector<at::Tensor> Segment::forward(std::vector<at::Tensor> inputs,
                                         const std::vector<at::Tensor>& parameters,
                                         const std::vector<at::Tensor>& buffers, RandomKey key,
                                         const NodeObserver* observer) const {
  const Implementation& self = *implementation_;
  PW_CHECK_EQ(inputs.size(), self.inputs.size());
  PW_CHECK_EQ(parameters.size(), self.parameters.size());
  PW_CHECK_EQ(buffers.size(), self.buffers.size());

  std::vector<at::Tensor> values = std::move(inputs);
  values.resize(self.value_count);
  c10::Stack stack;
  stack.reserve(self.deepest_stack);
  std::optional<AutocastScope> autocast;
  if (self.autocast) autocast.emplace(at::kBFloat16, self.device.type());

  const bool folded = !self.constants.empty();
  for (size_t i = 0; folded && i < self.constants.size(); ++i)
    values[self.constant_slots[i]] = self.constants[i];

  size_t next_random = 0;
  for (size_t i = 0; i < self.steps.size(); ++i) {
    const Step& step = self.steps[i];
    if (observer && observer->before) observer->before(i);
    if (step.constant && folded) {
      for (size_t n = 0; observer && observer->made && n < step.results.size(); ++n) {
        const uint32_t slot = step.results[n];
        if (slot != kDropped && values[slot].defined()) observer->made(i, n, values[slot]);
      }
      if (observer && observer->after) observer->after(i);
      continue;
    }

    stack.assign(step.stack.begin(), step.stack.end());
    for (const Fill& fill : step.fills) {
      if (fill.kind == TensorPlace::Kind::kTensor) {
        stack[fill.position] = self.take(fill.sources[0], values, parameters, buffers);
      } else if (fill.kind == TensorPlace::Kind::kTensors) {
        c10::List<at::Tensor> list;
        list.reserve(fill.sources.size());
        for (const Source& source : fill.sources)
          list.push_back(self.take(source, values, parameters, buffers));
        stack[fill.position] = std::move(list);
      } else {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(fill.sources.size());
        for (const Source& source : fill.sources) {
          std::optional<at::Tensor> one;
          if (source.kind != Source::Kind::kNone) one = self.take(source, values, parameters, buffers);
          list.push_back(std::move(one));
        }
        stack[fill.position] = std::move(list);
      }
    }

    std::optional<MemoryScope> kept_memory;
    if (step.constant) kept_memory.emplace(MemoryPurpose::kOther);
    std::optional<at::NoGradGuard> no_gradient;
    if (!step.gradient) no_gradient.emplace();
    std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
    if (step.without_autocast) no_autocast.emplace(c10::autocast_dispatch_keyset);
    std::optional<AutocastScope> own_autocast;
    if (step.autocast) own_autocast.emplace(*step.autocast, self.device.type());
    try {
      if (step.guard != nullptr) step.guard(stack);
      if (step.random) {
        const std::lock_guard<std::recursive_mutex> lock(generator_mutex());
        at::Generator generator = at::globalContext().defaultGenerator(self.device);
        std::optional<BorrowedStream> borrowed;
        if (key.streams) {
          borrowed.emplace(generator, key.streams->at(next_random));
        } else {
          const std::lock_guard<std::mutex> guard(generator.mutex());
          // The engine takes the low 32 bits: enough, as only chance ties of single nodes would be alike.
          generator.set_current_seed(seed_of(next_random, key));
        }
        ++next_random;
        step.op.callBoxed(stack);
      } else {
        step.op.callBoxed(stack);
      }
    } catch (const c10::Error& error) {
      rethrow(step, stack, error.what_without_backtrace());
    } catch (const std::bad_alloc&) {
      rethrow(step, stack, "cannot allocate memory");
    } catch (const std::exception& error) {
      rethrow(step, stack, error.what());
    }

    size_t made = 0;
    const auto keep = [&](at::Tensor tensor) {
      if (observer && observer->made) observer->made(i, made, tensor);
      if (made < step.results.size() && step.results[made] != kDropped)
        values[step.results[made]] = std::move(tensor);
      ++made;
    };
    for (c10::IValue& result : stack) {
      if (result.isTensor() || result.isNone()) {
        keep(result.isNone() ? at::Tensor() : std::move(result).toTensor());
      } else {
        // An operator that makes a list (split, unbind) makes one value per element.
        for (at::Tensor& tensor : std::move(result).toTensorVector()) keep(std::move(tensor));
      }
    }
    stack.clear();
    if (made != step.results.size())
      throw RunError(step.label + " made " + std::to_string(made) + " tensors; the graph names " +
                     std::to_string(step.results.size()));
    if (observer && observer->after) observer->after(i);
  }

  if (!folded) {
    for (const uint32_t slot : self.constant_slots) self.constants.push_back(values[slot]);
  }
  std::vector<at::Tensor> results;
  results.reserve(self.output_slots.size());
  for (const uint32_t slot : self.output_slots) results.push_back(values[slot]);
  return results;
}

}  // namespace pipewright
