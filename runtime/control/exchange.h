// What ranks tell each other once: a rank says a text under a topic, and whoever needs it waits for it. Its
// keys in the job's store stand in exchange.cc alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/transport/store.h"

namespace pipewright {

/// Who says it, and what.
enum class Topic {
  kFingerprint,    ///< rank 0: of its job
  kHost,           ///< every rank: ProcessName::host
  kProbeFacts,     ///< every rank of a probe: RankFacts
  kGroupServer,    ///< rank 0: GroupServerAddress
  kCache,          ///< the first rank of a host: SampleCache::address()
  kKeptInventory,  ///< the first rank of a host: HostInventory
  kKeptChoice,     ///< rank 0: from what the attempt goes on
  kKeptReady,      ///< the first rank of a host: the folder in which it has the chosen state whole
};

/// One thread: that of the store.
class Exchange {
 public:
  struct Settings {
    int64_t rank = 0;
    int64_t world_size = 1;
    std::chrono::milliseconds patience{0};  ///< for a text that has not been said yet
    /// Called about once a second while a text is waited for; may throw. May be empty.
    std::function<void()> check = {};
  };
  /// `store` outlives the object.
  Exchange(Store& store, Settings settings) : store_(store), settings_(std::move(settings)) {}

  int64_t rank() const { return settings_.rank; }
  /// As this rank, once in a job; to say the same again changes nothing.
  void say(Topic topic, const std::string& text);
  /// PeerError if it is not said within the patience.
  std::string said_by(int64_t rank, Topic topic);
  /// In the order of ranks.
  std::vector<std::string> said_by_all(Topic topic);

 private:
  Store& store_;
  const Settings settings_;
};

}  // namespace pipewright
