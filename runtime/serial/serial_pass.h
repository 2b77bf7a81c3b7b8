// One minibatch forward and backward through all stages of the reference, autograd cut at every cut.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/serial/reference.h"
#include "runtime/serial/serial_stage.h"
#include "runtime/stage/loss_shares.h"
#include "runtime/stage/sample_split.h"

namespace pipewright {

class SerialPass {
 public:
  /// Minibatch k as the stages count, which hold the versions that it reads. `differentiable`: the graph's
  /// values that a gradient flows back to (differentiable_values). `split`: how stages share minibatches. All
  /// are borrowed.
  SerialPass(std::vector<SerialStage>& stages, const std::set<std::string>& differentiable,
             const SampleSplit& split, int64_t k);

  /// What a part's loss counts in that of the minibatch, and the gradient that its backward begins with.
  struct LossWeight {
    double in_minibatch = 1;
    double gradient = 1;
  };
  /// Returns the loss.
  double forward(const MinibatchFields& fields, const RandomKey& key,
                 const std::function<LossWeight(SampleRange)>& weight_of);
  /// Adds the gradients of the weights to the sums of the rounds.
  void backward();

 private:
  // Values, or gradients of them, by name, for some samples.
  struct Crossing {
    SampleRange samples;
    MinibatchFields values;
  };
  // What one replica has run.
  struct Part {
    SerialStage::Part of;
    Tensors weights;
    MinibatchFields received;
    Tensors outputs;
    LossWeight loss_weight;
  };
  // The rows of a value that lie in what several replicas have of it, put together.
  at::Tensor gathered(const std::vector<Crossing>& crossing, const std::string& value,
                      SampleRange samples) const;
  Part forward_of(size_t s, const SerialStage::Part& of, const std::vector<Crossing>& crossing,
                  const MinibatchFields& fields, RandomKey key) const;
  // `gradients`: of the values sent. Returns those of the values received.
  MinibatchFields backward_of(size_t s, const Part& part, const std::vector<Crossing>& gradients);

  std::vector<SerialStage>& stages_;
  const std::set<std::string>& differentiable_;
  const SampleSplit& split_;
  const int64_t k_;
  std::vector<std::vector<Part>> parts_;  // by stage
};

}  // namespace pipewright
