// What a way of training costs in samples: measured by experiments/convergence, read by commands that say how
// long it takes to the same loss. docs/formats.md has the document.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/plan.h"

namespace pipewright {

/// One way of training a model of a kind, in a pipeline of equal stages.
struct ConvergenceRow {
  std::string weights;           ///< weight rule
  std::string optimizer;         ///< update rule
  std::string delay_correction;  ///< "none": without
  int64_t stages = 1;            ///< of one rank each
  /// Samples to the final loss of synchronous training with the same optimizer, for one that that takes;
  /// infinite: that loss was not reached.
  double samples_ratio = 1;
};

struct Convergence {
  static constexpr const char* kSchema = "pipewright.convergence/1";
  std::string model;  ///< the kind: what was trained, and how large
  std::vector<ConvergenceRow> rows;

  static Convergence from_json(JsonReader& reader);
  void validate(const std::string& where) const;

  /// ConvergenceRow::samples_ratio of a plan that is trained so: 1 where no weights are stale, otherwise that
  /// of the row with the same rules whose pipeline of equal stages has weights as old, or the next that has
  /// older ones (then it is a bound from above). Nothing where none was measured.
  std::optional<double> samples_ratio(const Plan& plan, const std::string& optimizer,
                                      const std::string& delay_correction) const;
};

}  // namespace pipewright
