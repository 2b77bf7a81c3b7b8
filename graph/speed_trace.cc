#include "graph/speed_trace.h"

#include <algorithm>

#include "graph/document.h"
#include "graph/limits.h"

namespace pipewright {

double SpeedTrace::factor(int64_t rank, double at_seconds) const {
  const auto found = ranks.find(rank);
  if (found == ranks.end()) return 1;
  const std::vector<SpeedPoint>& points = found->second;
  const auto next =
      std::upper_bound(points.begin(), points.end(), at_seconds,
                       [](double at, const SpeedPoint& point) { return at < point.at_seconds; });
  return next == points.begin() ? 1 : std::prev(next)->factor;
}

SpeedTrace SpeedTrace::from_json(JsonReader& reader) {
  reader.expect({"schema", "ranks"});
  SpeedTrace trace;
  for (JsonReader& entry : reader.objects("ranks")) {
    entry.expect({"rank", "points"});
    const int64_t rank = entry.integer("rank", 0, kMostRanks - 1);
    if (trace.ranks.count(rank) != 0) entry.fail("rank", std::to_string(rank) + " stands there twice");
    std::vector<SpeedPoint>& points = trace.ranks[rank];
    for (JsonReader& point : entry.objects("points")) {
      point.expect({"at_seconds", "factor"});
      points.push_back({point.number("at_seconds", 0, kMostSeconds), point.number("factor", 1, 1e6)});
      if (points.size() > 1 && points.back().at_seconds <= points[points.size() - 2].at_seconds)
        point.fail("at_seconds", "not later than the point before");
      point.finish();
    }
    entry.finish();
  }
  return trace;
}

Json SpeedTrace::to_json() const {
  Json json;
  json["ranks"] = Json::array();
  for (const auto& [rank, points] : ranks) {
    Json entry;
    entry["rank"] = rank;
    entry["points"] = Json::array();
    for (const SpeedPoint& point : points)
      entry["points"].push_back({{"at_seconds", point.at_seconds}, {"factor", point.factor}});
    json["ranks"].push_back(std::move(entry));
  }
  return json;
}

void SpeedTrace::validate(const std::string&) const {}

SpeedTrace read_speed_trace(const std::filesystem::path& file) { return read_document<SpeedTrace>(file); }

}  // namespace pipewright
