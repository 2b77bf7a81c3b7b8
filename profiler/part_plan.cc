#include "profiler/part_plan.h"

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/units.h"
#include "models/run/device_passes.h"
#include "models/run/operators.h"
#include "profiler/parts.h"
#include "profiler/pieces.h"

namespace pipewright {
namespace {

/// Of a trained parameter while it is measured: itself, its gradient, the next version, momentum, a sum of
/// gradients.
constexpr int64_t kWeightSets = 5;
/// And its copies in bfloat16, of half as much each, where weights are cast once: itself, the next version.
constexpr int64_t kCopySets = 1;

/// As allocators of devices give it out; of the host's memory no more is counted than what is asked for.
int64_t allocated(int64_t bytes, at::Device device) {
  constexpr int64_t kBlock = 512;
  return device.is_cpu() ? bytes : (bytes + kBlock - 1) / kBlock * kBlock;
}

int64_t measuring_bytes_of(const Graph& graph, const Parameter& parameter, at::Device device) {
  const bool trains = parameter.trainable && dtype_is_floating(parameter.type.dtype);
  const int64_t copies = casts_weights_once(graph) ? kCopySets : 0;
  return ((trains ? kWeightSets : 1) + copies) * allocated(parameter.type.bytes(), device);
}

int64_t bytes_of_values(const Graph& graph, size_t begin, size_t end, at::Device device) {
  int64_t bytes = 0;
  for (size_t i = begin; i < end; ++i)
    for (const std::string& name : graph.nodes[i].outputs)
      bytes += allocated(graph.computed_type(name).bytes(), device);
  return bytes;
}

/// By types, for the whole: each value, and as much again for what operators keep for themselves.
int64_t rough_bytes(const Graph& graph, at::Device device) {
  int64_t bytes = 2 * bytes_of_values(graph, 0, graph.nodes.size(), device);
  for (const Parameter& parameter : graph.parameters) bytes += measuring_bytes_of(graph, parameter, device);
  return bytes;
}

/// Tries each piece by itself, in order.
class Trial {
 public:
  /// Borrows all of it.
  Trial(const Model& model, const std::vector<at::Tensor>& inputs, uint64_t seed, at::Device device,
        const MemoryThere& memory)
      : model_(model),
        graph_(model.graph),
        inputs_(inputs),
        seed_(seed),
        device_(device),
        memory_(memory),
        begins_(piece_begins(graph_)),
        last_reader_(last_readers(graph_)) {
    for (const Parameter& parameter : graph_.parameters) {
      parameter_position_.emplace(parameter.name, sizes_.parameter_bytes.size());
      sizes_.parameter_bytes.push_back(measuring_bytes_of(graph_, parameter, device_));
    }
    for (const Buffer& buffer : graph_.buffers)
      buffer_bytes_[buffer.name] = allocated(buffer.type.bytes(), device_);
    for (const at::Tensor& input : inputs)
      sizes_.input_bytes += allocated(static_cast<int64_t>(input.nbytes()), device_);
    for (size_t piece = 0; piece < begins_.size(); ++piece) {
      sizes_.pieces.push_back(piece_by_types(piece));
      for (size_t i = begins_[piece]; i < end_of(piece); ++i)
        for (const std::string& name : graph_.nodes[i].reads())
          if (readers_[name].empty() || readers_[name].back() != piece) readers_[name].push_back(piece);
    }
  }

  void run() {
    for (size_t piece = 0; piece < begins_.size(); ++piece) try_piece(piece);
    find_gradients();
  }

  std::vector<Part> parts() const {
    std::vector<Part> parts;
    for (const PieceRange& range : parts_within(sizes_, memory_.bytes)) {
      // What later pieces keep of it is known only now.
      if (range.need_bytes > memory_.bytes) refuse(range.begin, range.need_bytes);
      Part part = part_between(graph_, last_reader_, begins_[range.begin], end_of(range.end - 1));
      std::erase_if(part.with_gradient, [&](const std::string& name) { return !with_gradient_.count(name); });
      part.need_bytes = range.need_bytes;
      parts.push_back(std::move(part));
    }
    return parts;
  }

 private:
  size_t end_of(size_t piece) const {
    return piece + 1 < begins_.size() ? begins_[piece + 1] : graph_.nodes.size();
  }
  size_t piece_of(size_t node) const {
    return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), node) - begins_.begin()) - 1;
  }

  /// What is known before anything of it has run: at least so much.
  MeasuringSizes::Piece piece_by_types(size_t piece) const {
    MeasuringSizes::Piece sizes;
    std::set<std::string> read;
    for (size_t i = begins_[piece]; i < end_of(piece); ++i) {
      const std::vector<std::string> names = graph_.nodes[i].reads();
      read.insert(names.begin(), names.end());
      if (names.empty())
        sizes.buffer_bytes += bytes_of_values(graph_, i, i + 1, device_);  // runs once and is kept
    }
    for (const std::string& name : read) {
      if (const auto found = parameter_position_.find(name); found != parameter_position_.end())
        sizes.parameters.push_back(found->second);
      if (const auto found = buffer_bytes_.find(name); found != buffer_bytes_.end())
        sizes.buffer_bytes += found->second;
    }
    return sizes;
  }

  void try_piece(size_t piece) {
    check(piece);
    const size_t end = end_of(piece);
    const Part part = part_between(graph_, last_reader_, begins_[piece], end);
    Bench bench(model_, part, crossing_, inputs_, seed_, device_);
    const SavedPass pass = bench.saved();
    MeasuringSizes::Piece& sizes = sizes_.pieces[piece];
    for (const int64_t bytes : pass.bytes) sizes.saved_bytes += bytes;
    sizes.peak_bytes = bench.peak_bytes();
    note_memories(piece, pass.leaving);
    for (const auto& [value, sources] : pass.gradient_reaches) sources_[value] = sources;
    go_past(pass, last_reader_, end, crossing_,
            [&](size_t node, int64_t bytes) { sizes_.pieces[piece_of(node)].saved_bytes += bytes; });
    check(piece);
  }

  void note_memories(size_t piece, const CrossingValues& leaving) {
    std::map<const CrossingMemory*, std::set<size_t>> readers;
    for (const auto& [name, value] : leaving)
      for (const size_t reader : readers_.at(name))
        if (reader > piece) readers[value.memory.get()].insert(reader);
    for (const auto& [memory, pieces] : readers)
      sizes_.memories.push_back({piece,
                                 {pieces.begin(), pieces.end()},
                                 allocated(static_cast<int64_t>(memory->bytes.nbytes()), device_)});
  }

  void check(size_t piece) const {
    const int64_t need = measuring_bytes(sizes_, piece, piece + 1);
    if (need > memory_.bytes) refuse(piece, need);
  }

  [[noreturn]] void refuse(size_t piece, int64_t need) const {
    const size_t last = end_of(piece) - 1;
    std::string who = label_of(graph_.nodes[begins_[piece]]);
    if (last > begins_[piece])
      who += " to " + label_of(graph_.nodes[last]) + ", which are measured together,";
    throw InputError(who + " alone needs at least " + std::to_string(need) + " bytes (" +
                         format_bytes(static_cast<double>(need)) + ") to be measured; " +
                         format_bytes(static_cast<double>(memory_.bytes)) + " " + memory_.what,
                     "Next: a smaller --batch-size, or more memory.");
  }

  /// From the loss back: to which values that cross its gradient comes.
  void find_gradients() {
    with_gradient_.insert(graph_.outputs.at(0));
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      for (const std::string& name : graph_.nodes[i].outputs) {
        const auto sources = sources_.find(name);
        if (sources == sources_.end() || !with_gradient_.count(name)) continue;
        with_gradient_.insert(sources->second.begin(), sources->second.end());
      }
    }
  }

  const Model& model_;
  const Graph& graph_;
  const std::vector<at::Tensor>& inputs_;
  const uint64_t seed_;
  const at::Device device_;
  const MemoryThere& memory_;
  const std::vector<size_t> begins_;  // nodes, by piece
  const std::map<std::string, size_t> last_reader_;
  std::map<std::string, std::vector<size_t>> readers_;  // pieces that read a value, ascending
  std::map<std::string, size_t> parameter_position_;
  std::map<std::string, int64_t> buffer_bytes_;
  MeasuringSizes sizes_;
  CrossingValues crossing_;
  std::map<std::string, std::set<std::string>> sources_;  // of each value that crosses
  std::set<std::string> with_gradient_;
};

}  // namespace

std::vector<Part> plan_parts(const Model& model, const std::vector<at::Tensor>& inputs, uint64_t seed,
                             at::Device device, const PartLimit& limit) {
  if (!limit.is_asked_for && rough_bytes(model.graph, device) < limit.memory.bytes / 2)
    return {whole_part(model.graph)};
  Trial trial(model, inputs, seed, device, limit.memory);
  trial.run();
  return trial.parts();
}

void go_past(const SavedPass& pass, const std::map<std::string, size_t>& last_reader, size_t end,
             CrossingValues& crossing, const std::function<void(size_t, int64_t)>& add_saved) {
  for (const auto& memory : pass.kept) {
    if (memory->saved || !memory->maker) continue;
    memory->saved = true;
    add_saved(*memory->maker, memory->allocated_bytes);
  }
  crossing.insert(pass.leaving.begin(), pass.leaving.end());
  std::erase_if(crossing, [&](const auto& value) {
    const auto last = last_reader.find(value.first);
    return last == last_reader.end() || last->second < end;
  });
}

}  // namespace pipewright
