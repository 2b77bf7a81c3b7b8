// A stage's forward and backward as recordings of its device (models/device/device_graph.h): started with one
// call each, where a small stage would be bound by starting its operators one by one.
#pragma once

#include <c10/core/Event.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/device/device_graph.h"
#include "runtime/stage/stage_program.h"
#include "runtime/stage/weight_versions.h"

namespace pipewright {

/// Why these nodes of a graph cannot be recorded: "" if nothing is known against it, else a node whose
/// output's shape the host learns from the device's numbers.
std::string recording_obstacle(const Graph& graph, const std::vector<size_t>& nodes);

struct RecordedStageSettings {
  at::Device device = at::kCPU;
  uint64_t seed = 0;            ///< of RandomKey
  size_t places = 1;            ///< that weight versions have at most
  bool several_a_round = true;  ///< backwards may add to gradients that are there already
  bool split_backward = false;  ///< the program's: its backward comes in two parts
  bool if_host_bound = false;   ///< record only where the device waits for the host
  bool one_in_flight = false;   ///< a backward ends before the next forward begins
  /// Called once, before the first recording: by StageProgram::trainable() the round's sums, always these
  /// tensors from then on. What the round has summed lies there afterwards.
  std::function<std::vector<at::Tensor>()> gradients{};
};

/// Recordings are made when they are first needed, and kept: one *position* for each place that the weights
/// can have and each minibatch that can be in flight with weights there. A position is a recorded forward,
/// its backwards, and the fixed memory that they read and write: what is received, the minibatch's fields,
/// the gradients from downstream, activations, what is sent. Its activations live while recordings of other
/// positions run, so each position has a DeviceGraphs of its own, unless no two are ever in use together. The
/// bits are those of the program itself.
///
/// A minibatch is left to the program before the first backward has ended (libraries prepare themselves in
/// it), where the weights have left all places that they can have, where its loss counts nothing, and once a
/// recording has failed.
///
/// One thread, on one stream.
class RecordedStage {
 public:
  /// Borrows `program`.
  RecordedStage(const StageProgram& program, MakeDeviceGraphs make_graphs, RecordedStageSettings settings);
  ~RecordedStage();

  /// Gradients from downstream that a backward of the program is given outside: those of recordings lie in
  /// memory as they do.
  void notice(const std::vector<at::Tensor>& sent_gradients);
  /// A backward of the program has ended outside: recordings can be made from now on.
  void warmed_up();
  /// Around a forward of the program outside: has the device begun it before the host had started it all?
  /// Where it has in kStreak forwards in a row, not counting the first kStreak, it waits for the host.
  void begin_forward();
  void end_forward();
  static constexpr int64_t kStreak = 4;

  struct Outputs {
    std::vector<at::Tensor> sent;
    at::Tensor loss;  ///< undefined but on the last stage
  };
  /// As StageProgram::forward() with autograd, with this Pass::loss_weight. What it returns is the caller's.
  /// Nothing: run it there. The version keeps its place and its numbers until the backward of k has been
  /// started.
  std::optional<Outputs> forward(int64_t k, const std::vector<at::Tensor>& received,
                                 const std::vector<at::Tensor>& fields, const WeightVersion& version,
                                 const std::vector<at::Tensor>& buffers, double loss_weight);
  /// Is minibatch k between a forward() here and its backward()?
  bool holds(int64_t k) const { return in_flight_.count(k) > 0; }
  /// Adds the gradients of the weights to those of settings.gradients, or, if it is the `first` of a round,
  /// puts them there; returns the message upstream, which is the caller's.
  std::vector<at::Tensor> backward(int64_t k, const std::vector<at::Tensor>& sent_gradients, bool first);
  /// The same in two parts, with settings.split_backward.
  std::vector<at::Tensor> backward_input(int64_t k, const std::vector<at::Tensor>& sent_gradients);
  void backward_weight(int64_t k, bool first);

  /// Why minibatches are left to the program, as far as it is known: "" or the first reason met.
  std::string obstacle() const;
  int64_t recorded_forwards() const { return recorded_forwards_; }  ///< minibatches that ran as recordings
  int64_t positions() const;
  /// Over all recordings, what would be started one by one (DeviceGraph::size()).
  int64_t size() const;
  /// What recordings may read and write beside weights, buffers and what they make: for tests.
  std::vector<at::Tensor> fixed_memory() const;

 private:
  struct Position;
  struct Place;
  Place* place_of(const WeightVersion& version, const std::vector<at::Tensor>& buffers);
  Position& free_position(Place& place, const std::vector<at::Tensor>& received,
                          const std::vector<at::Tensor>& fields);
  bool record(Position& position, const WeightVersion& version, const std::vector<at::Tensor>& buffers);
  Pass record_forward(Position& position, const WeightVersion& version,
                      const std::vector<at::Tensor>& buffers);
  void record_backwards(Position& position, Pass pass);
  void take_gradients();
  void seed(int64_t minibatch);
  Position& position_of(int64_t k);
  void prepare_backward(int64_t k, const std::vector<at::Tensor>& sent_gradients);
  void end_backward(int64_t k, bool first);

  const StageProgram& program_;
  MakeDeviceGraphs make_graphs_;
  RecordedStageSettings settings_;
  std::optional<std::vector<at::Tensor>> gradients_;  // since the first recording
  std::vector<at::Generator> streams_;                // by Segment::random_nodes()
  std::vector<std::unique_ptr<Place>> places_;
  std::map<int64_t, Position*> in_flight_;
  std::vector<at::Tensor> like_gradients_;  // sizes, strides, options: no memory
  std::optional<c10::Event> forward_begin_;
  int64_t watched_ = 0, streak_ = 0;  // forwards
  bool host_bound_ = false;
  bool warm_ = false;
  bool failed_ = false;  // a recording did: no other is tried
  std::string obstacle_;
  int64_t recorded_forwards_ = 0;
};

}  // namespace pipewright
