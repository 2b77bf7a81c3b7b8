// A stage that begins with frozen layers, cut behind them: what they make of a minibatch can be kept, and the
// rest of the stage trained from it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/run/interpreter.h"
#include "runtime/stage/stage_program.h"

namespace pipewright {

class PrefixCut {
 public:
  /// `graph`: frozen_graph() of the model. Its nodes [0, end) are the frozen ones; those behind `stages[0]`
  /// are no part of this. `whole`: the first stage as it runs uncut, with these options.
  PrefixCut(const Graph& graph, const std::vector<StageInterface>& stages, size_t end,
            const StageProgram& whole, StageProgramOptions options = {});

  /// Why what leaves the frozen layers is no pure function of each sample; "" if it is, as far as the graph
  /// says. Of the rest of this class only values() may be used then.
  const std::string& obstacle() const { return obstacle_; }
  /// What crosses the cut and depends on the sample, in graph order, and the types of it, with the batch.
  const std::vector<std::string>& values() const { return values_; }
  const std::vector<TensorType>& types() const { return types_; }

  /// What `whole` takes -> the values. No autograd; the same bits as within the whole stage.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& fields, const std::vector<at::Tensor>& weights,
                              const std::vector<at::Tensor>& buffers) const;
  /// The same from the values of a cut further ahead, of the same stage.
  std::vector<at::Tensor> run_from(const PrefixCut& shallower, const std::vector<at::Tensor>& values,
                                   const std::vector<at::Tensor>& fields,
                                   const std::vector<at::Tensor>& weights,
                                   const std::vector<at::Tensor>& buffers) const;

  /// Of all that the values depend on beside the sample: nodes, weights and buffers (as run() takes them).
  std::string digest(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& buffers) const;

  at::Device device() const { return device_; }
  /// What the whole stage takes.
  const std::vector<std::string>& whole_fields() const { return fields_; }
  /// Of the fields of the whole stage, these.
  std::vector<at::Tensor> other_fields(const std::vector<at::Tensor>& fields,
                                       const std::vector<std::string>& wanted) const;

  /// The rest of the stage. Its fields() are values() and those fields of the stage that it reads itself, in
  /// one order or another; its trainable parameters those of the whole stage.
  const StageProgram& behind() const { return *behind_; }
  /// Of weights and buffers as `whole` takes them, those that behind() does: the same tensors.
  std::shared_ptr<const WeightVersion> version_behind(const WeightVersion& whole) const;
  std::vector<at::Tensor> buffers_behind(const std::vector<at::Tensor>& whole) const;

 private:
  /// Nodes that make values() of the fields and of `given`.
  std::vector<size_t> makers(const std::vector<std::string>& given) const;
  std::vector<at::Tensor> run_segment(const Segment& segment, const std::vector<std::string>& given,
                                      const std::vector<at::Tensor>& values,
                                      const std::vector<at::Tensor>& fields,
                                      const std::vector<at::Tensor>& weights,
                                      const std::vector<at::Tensor>& buffers) const;

  Graph graph_;
  std::vector<size_t> nodes_;  // of the stage
  size_t end_;
  at::Device device_;
  std::string obstacle_;
  std::vector<std::string> values_;
  std::vector<TensorType> types_;
  std::vector<std::string> fields_, parameters_, buffers_;  // of the whole stage
  std::unique_ptr<Segment> prefix_;
  std::unique_ptr<StageProgram> behind_;
  // Steps from cuts further ahead, by their values.
  mutable std::map<std::vector<std::string>, Segment> steps_;
};

}  // namespace pipewright
