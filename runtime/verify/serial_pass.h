// One minibatch forward and backward through all stages of the reference, autograd cut at every cut.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/verify/reference.h"
#include "runtime/verify/serial_stage.h"

namespace pipewright {

class SerialPass {
 public:
  /// Minibatch k as the stages count, which hold the versions that it reads. `differentiable`: the graph's
  /// values that a gradient flows back to (differentiable_values). Both are borrowed.
  SerialPass(std::vector<SerialStage>& stages, const std::set<std::string>& differentiable, int64_t k);

  /// Returns the loss.
  double forward(const MinibatchFields& fields, const RandomKey& key);
  /// Adds the gradients of the weights to the sums of the rounds.
  void backward();

 private:
  // `gradients`: of the values sent, by name. Returns those of the values received.
  MinibatchFields backward_of(size_t s, const MinibatchFields& gradients);
  void add_to_round(SerialStage& stage, const Tensors& gradients);

  std::vector<SerialStage>& stages_;
  const std::set<std::string>& differentiable_;
  const int64_t k_;
  std::vector<MinibatchFields> received_;  // by stage
  std::vector<Tensors> outputs_;           // likewise
};

}  // namespace pipewright
