#include "graph/live_status.h"

#include "graph/limits.h"

namespace pipewright {

namespace {

constexpr double kMostUnixSeconds = 1e11;  // the year 5138

}  // namespace

LiveStatus LiveStatus::from_json(JsonReader& reader) {
  reader.expect({"schema", "at_seconds", "minibatches", "minibatches_per_epoch", "evaluating", "ranks"});
  LiveStatus status;
  status.at_seconds = reader.number("at_seconds", 0, kMostUnixSeconds);
  status.minibatches = reader.integer("minibatches", 0, kMostCount);
  status.minibatches_per_epoch = reader.integer("minibatches_per_epoch", 1, kMostCount);
  status.evaluating = reader.boolean("evaluating");
  for (JsonReader& entry : reader.objects("ranks")) {
    entry.expect({"rank", "heard_at_seconds", "operation", "operation_seconds", "minibatch", "waited_seconds",
                  "peak_memory_bytes"});
    const int64_t number = entry.integer("rank", 0, kMostRanks - 1);
    if (status.ranks.count(number) != 0) entry.fail("rank", std::to_string(number) + " stands there twice");
    LiveRank& rank = status.ranks[number];
    rank.heard_at_seconds = entry.number("heard_at_seconds", 0, kMostUnixSeconds);
    rank.operation = entry.string("operation");
    rank.operation_seconds = entry.number("operation_seconds", 0, kMostSeconds);
    if (entry.has("minibatch")) rank.minibatch = entry.integer("minibatch", 0, kMostCount);
    rank.waited_seconds = entry.number("waited_seconds", 0, kMostSeconds);
    rank.peak_memory_bytes = entry.integer("peak_memory_bytes", 0, kMostBytes);
    entry.finish();
  }
  return status;
}

Json LiveStatus::to_json() const {
  Json json;
  json["at_seconds"] = at_seconds;
  json["minibatches"] = minibatches;
  json["minibatches_per_epoch"] = minibatches_per_epoch;
  json["evaluating"] = evaluating;
  json["ranks"] = Json::array();
  for (const auto& [number, rank] : ranks) {
    Json entry;
    entry["rank"] = number;
    entry["heard_at_seconds"] = rank.heard_at_seconds;
    entry["operation"] = rank.operation;
    entry["operation_seconds"] = rank.operation_seconds;
    if (rank.minibatch) entry["minibatch"] = *rank.minibatch;
    entry["waited_seconds"] = rank.waited_seconds;
    entry["peak_memory_bytes"] = rank.peak_memory_bytes;
    json["ranks"].push_back(std::move(entry));
  }
  return json;
}

void LiveStatus::validate(const std::string&) const {}

}  // namespace pipewright
