// What a run is doing: written by rank 0 about once a second while it trains (docs/formats.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "graph/json.h"

namespace pipewright {

/// A rank as rank 0 last heard of it.
struct LiveRank {
  double heard_at_seconds = 0;       ///< Unix time, by rank 0's clock
  std::string operation;             ///< "forward of minibatch 17"; "" between two
  double operation_seconds = 0;      ///< in it, by then
  std::optional<int64_t> minibatch;  ///< the last of which an operation began; nothing: none yet
  double waited_seconds = 0;         ///< for other ranks, since it began
  int64_t peak_memory_bytes = 0;     ///< tensors
};

struct LiveStatus {
  static constexpr const char* kSchema = "pipewright.live/1";
  static constexpr const char* kFile = "live.json";  ///< in the run folder

  double at_seconds = 0;    ///< Unix time
  int64_t minibatches = 1;  ///< of the whole run
  int64_t minibatches_per_epoch = 1;
  bool evaluating = false;  ///< an evaluation is under way: minibatches are its own
  std::map<int64_t, LiveRank> ranks;

  static LiveStatus from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;
};

}  // namespace pipewright
