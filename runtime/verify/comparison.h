// What a run ended with beside what it should have ended with: bit for bit, and how far apart.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pipewright {

struct TrainedModel {
  std::vector<double> losses;                 ///< by minibatch, from the first that was trained
  std::map<std::string, at::Tensor> tensors;  ///< parameters and buffers by name
  /// What the optimizer keeps, by slot and parameter; none before the first update.
  std::map<std::string, std::map<std::string, at::Tensor>> slots = {};
};

/// A tensor and the stage that has it (a tied parameter: the first).
struct StageTensor {
  std::string name;
  int64_t stage = 0;
  bool trainable = false;
  bool buffer = false;
};

struct ExactComparison {
  struct Loss {
    size_t position = 0;  ///< in TrainedModel::losses
    double got = 0;
    double expected = 0;
  };
  struct Element {
    StageTensor place;
    std::vector<int64_t> index;
    double got = 0;
    double expected = 0;
  };
  std::optional<Loss> first_loss;        ///< that differs
  std::optional<Element> first_element;  ///< that differs, of the first such tensor
  std::vector<StageTensor> different;    ///< tensors, in the order of the places

  bool equal() const { return !first_loss && !first_element; }
};

/// NaN equals NaN; 0 does not equal -0. Both models have the tensors of `places` in equal dtypes and shapes,
/// and equally many losses.
ExactComparison compare_exactly(const TrainedModel& got, const TrainedModel& expected,
                                const std::vector<StageTensor>& places);

struct RelativeComparison {
  struct Parameter {
    StageTensor place;
    int64_t elements = 0;
    double difference = 0;
  };
  std::vector<Parameter> parameters;  ///< trainable ones, in the order of the places
  double model = 0;                   ///< of all of them together
  double loss = 0;                    ///< largest |got - expected| / |expected|

  /// The parameter with the largest difference; null if there are none.
  const Parameter* largest() const;
};

/// The difference of a parameter is |got - expected| / |expected - start|, with |.| the root of the sum of
/// squares in float64: how far apart the two are, measured by how far training has moved it. A parameter that
/// has hardly moved is measured by a thousandth of what the model's elements have moved in the mean: there
/// rounding is all there is. Infinite where one of them is not finite.
RelativeComparison compare_relatively(const TrainedModel& got, const TrainedModel& expected,
                                      const std::map<std::string, at::Tensor>& start,
                                      const std::vector<StageTensor>& places);

}  // namespace pipewright
