#include "runtime/monitor/core_sample.h"

#include <utility>

#include "graph/json.h"

namespace pipewright {
namespace {

constexpr const char* kCoreLine = R"({"kind":"core",)";

}  // namespace

std::string CoreSample::to_line() const {
  Json json;
  json["features"] = Json::array();
  for (const double value : features) json["features"].push_back(finite_or_null(value));
  std::string line = kCoreLine;
  line.append(json.dump(), 1);
  return line;
}

bool CoreSample::is_line(const std::string& line) { return line.rfind(kCoreLine, 0) == 0; }

CoreSample CoreSample::from_line(const std::string& line) {
  const Json json = parse_json(line, "line of a rank");
  CoreSample sample;
  for (const Json& value : json.at("features")) sample.features.push_back(number_or_nan(value));
  return sample;
}

void CoreSamples::take(int64_t rank, CoreSample sample) {
  const std::lock_guard lock(mutex_);
  std::vector<CoreSample>& since = since_.at(static_cast<size_t>(rank));
  since.push_back(std::move(sample));
  if (since.size() > kMost) since.erase(since.begin());
}

std::vector<std::vector<CoreSample>> CoreSamples::take_all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<CoreSample>> all(since_.size());
  std::swap(all, since_);
  return all;
}

}  // namespace pipewright
