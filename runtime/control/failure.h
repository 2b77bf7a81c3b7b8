// Why a job ends early. All its processes find it on the board (board.h), where the first one counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/error.h"

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

}  // namespace pipewright
