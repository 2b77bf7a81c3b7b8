// A start of a job's ranks after an earlier one lost a rank, as the launcher describes it to them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "graph/json.h"
#include "graph/plan.h"
#include "graph/run.h"
#include "runtime/checkpoint/checkpoint.h"

namespace pipewright {

/// From what a run goes on when a rank was lost, and how that state was kept.
struct RecoveredState {
  std::optional<Checkpoint> checkpoint;  ///< nothing: the run's start
  std::string from;                      ///< "memory", "checkpoint", "start"
};

/// Attempt 0 has none.
struct Attempt {
  int64_t number = 1;
  bool began = true;   ///< one before has made the run folder its own; else nothing is there to go on from
  std::string reason;  ///< why the one before ended: "rank 2 was killed by signal 9 (Killed)"
  double lost_at_seconds = 0;       ///< when that was noticed, on the clock of the host (Unix time)
  double job_began_at_seconds = 0;  ///< likewise, the first attempt
  /// The plan of the ranks that are left; nothing: the plan that was in force goes on.
  std::optional<Plan> plan;
  /// On what its ranks have agreed (runtime/launch/recovered_state.h); the launcher does not say it. Nothing:
  /// newest_state().
  std::optional<RecoveredState> state{};

  static Attempt from_json(JsonReader& reader);
  Json to_json() const;
};

/// Written by the launcher before it starts the attempt, read by its ranks.
std::filesystem::path attempt_file(const std::filesystem::path& run_folder);
void write_attempt(const std::filesystem::path& run_folder, const Attempt& attempt);
/// That of attempt_of_process(); nothing for 0. RunError unless the run folder has its file.
std::optional<Attempt> read_attempt(const std::filesystem::path& run_folder);

/// The newest state that is whole here: of what this host keeps in memory (kept_state.h) and of the
/// checkpoints in the run folder; a damaged one is passed over with a line on standard error. Without any the
/// run's own start.
RecoveredState newest_state(const Run& run);
/// The newest whole checkpoint of the run folder from behind `minibatch`, likewise; nothing: there is none.
std::optional<Checkpoint> newest_written(const Run& run, int64_t minibatch);

}  // namespace pipewright
