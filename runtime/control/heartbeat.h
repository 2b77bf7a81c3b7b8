// What each rank says of itself about once a second, and what can be read from all of it: who waits for whom.
// Where it is said: board.h.
#pragma once

#include <chrono>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/progress.h"
#include "runtime/transport/process_state.h"

namespace pipewright {

struct Beat {
  int64_t number = 0;  ///< grows: a rank whose number stands still is not heard of
  ProgressNow progress;
  /// Grows while the rank gets something done, be it that a file of it is still being written.
  int64_t work = 0;
  bool finished = false;  ///< the last one: the rank leaves

  std::string to_text() const;
  static Beat from_text(const std::string& text);
};

/// A rank as the board and, on the same host, the kernel know it.
struct RankReport {
  int64_t rank = 0;
  std::optional<Beat> beat;
  std::optional<ProcessName> process;
  ProcessState state = ProcessState::kUnknown;
};

/// "forward of minibatch 17 since 3.2 s"; "" if the rank has not said.
std::string doing(const RankReport& report);
std::string last_heard_of(const RankReport& report);  ///< "last heard of in " doing(), or ""
/// "its process 4711 on node3 has died", "... is stopped (SIGSTOP or a debugger)"; for a rank that cannot be
/// looked at "its process is stopped or its host is cut off".
std::string state_words(const RankReport& report);
/// Who waits for `rank`, directly or through others, nearest first: "rank 2 waits for rank 1 (receive
/// activation of minibatch 17 since 12.0 s)", separated by "; ". "" if nobody does.
std::string who_waits_for(const std::vector<RankReport>& reports, int64_t rank);
/// Ranks from `rank` on, each waiting for the next; ends with one that waits for nobody, or with the first
/// that is there twice.
std::vector<int64_t> waiting_chain(const std::vector<RankReport>& reports, int64_t rank);
/// Such a chain in words, link by link, as who_waits_for().
std::string chain_words(const std::vector<RankReport>& reports, const std::vector<int64_t>& chain);

/// "rank 3", "ranks 1, 2", "ranks 0, 4-62": of ascending numbers, at least one.
std::string ranks_words(const std::vector<int64_t>& ranks);
std::string seconds_words(double seconds);  ///< "12.0 s"
std::string seconds_words(std::chrono::duration<double> time);
/// The parts that say something, as one line, separated by "; ".
std::string joined(std::initializer_list<std::string> parts);

}  // namespace pipewright
