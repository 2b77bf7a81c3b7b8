// A predictor whose slowdown is 1 and what a rank has waited for its core, 0 to 3 seconds for each that it
// ran; and samples for it.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "interference/core_features.h"
#include "interference/predictor.h"
#include "runtime/monitor/core_sample.h"

namespace pipewright::testing {

inline Predictor waiting_predictor() {
  InterferenceData data;
  data.features = {"waiting"};
  for (int i = 0; i <= 300; ++i) data.rows.push_back({"matrix", 1, "w", {0.01 * i}, 1 + 0.01 * i});
  return Predictor::train(data, {});
}

inline CoreSample waiting_sample(double waited) {
  const std::vector<std::string> names = core_feature_names();
  // All but the last, which describes the work.
  CoreSample sample{std::vector<double>(names.size() - 1, std::numeric_limits<double>::quiet_NaN())};
  const auto at = std::find(names.begin(), names.end(), "waiting") - names.begin();
  sample.features[static_cast<size_t>(at)] = waited;
  return sample;
}

}  // namespace pipewright::testing
