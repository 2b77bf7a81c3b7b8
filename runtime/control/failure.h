// Why a job ends early, and where all its processes find it: one key of the store, set once, by whoever is
// first.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "graph/error.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// The first one wins; every rank sees the same.
struct Failure {
  int64_t rank = 0;                   ///< that failed; for a lost peer, the rank that says so
  ExitCode code = ExitCode::kFailed;  ///< of that rank; kPeerLost for a rank that died or stopped
  std::string message;
  std::string remedy = {};           ///< as Error::remedy()
  std::optional<int64_t> lost = {};  ///< the rank that has died or stopped, where it is known which

  std::string to_text() const;
  static Failure from_text(const std::string& text);
};

/// Sets it. False: somebody was before.
bool announce_failure(Store& store, const Failure& failure);
/// The one that somebody has set; RunError if nobody does so within `timeout`.
Failure await_failure(Store& store, std::chrono::milliseconds timeout);
/// The one that is there, if any.
std::optional<Failure> announced_failure(Store& store);

}  // namespace pipewright
