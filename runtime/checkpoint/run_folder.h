// The folder that a run writes: one run at a time, and what an earlier one left is not lost.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/summary.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/transport/process_state.h"

namespace pipewright {

/// Holds the folder, which is made if it is not there, for this process and all that it starts, until the
/// last of them has ended, in whichever way: an advisory lock (flock) on RUN/.lock, which names process and
/// host as long as this object lives. Where the file system has no such locks nothing is held, and a line on
/// standard error says so.
class RunFolderLock {
 public:
  /// InputError, before anything in the folder is touched, if a run writes there: it names that run's
  /// process. A run whose launcher has died is waited for, up to ten seconds, until its ranks have ended too.
  /// RunError if the folder cannot be made.
  explicit RunFolderLock(const std::filesystem::path& folder);
  RunFolderLock(const RunFolderLock&) = delete;
  RunFolderLock& operator=(const RunFolderLock&) = delete;
  ~RunFolderLock();

 private:
  int descriptor_ = -1;
};

/// Does a process hold the folder?
bool run_folder_is_held(const std::filesystem::path& folder);

/// The process that holds the folder, by its own words: one that was killed is still named. Takes no lock,
/// so no run that begins meanwhile is kept out.
std::optional<ProcessName> run_folder_holder(const std::filesystem::path& folder);

/// The files of a run whose plan changes: each plan, and the changes as CHANGES.json (graph/plan_changes.h).
std::string generation_plan_name(int64_t generation);  ///< "generation-K.plan.json"
constexpr const char* kChangesName = "changes.json";
/// Those of the folder from generation `from` on; from 0 on with changes.json, if that is there.
std::vector<std::string> plans_of_changes_in(const std::filesystem::path& folder, int64_t from = 0);

/// The plan that was in force at the end of a run, from its folder.
Plan last_plan_of(const std::filesystem::path& folder, const Summary& summary);

/// RunError if it cannot be made.
void make_run_folder(const std::filesystem::path& folder);

/// Has a run trained anything there?
bool holds_earlier_run(const std::filesystem::path& folder);

/// Makes the folder, which this process holds, ready for a run that goes on from `resume`, if that is given.
/// What an earlier run left and this one does not go on from is set aside: run.json, plan.json, changes.json
/// and the plans that it names, metrics.jsonl, summary.json, trace.json, verified.json, model.safetensors, flight/, the
/// ranks' logs and checkpoints/ are then in RUN/earlier-N, a run folder like any other, and a line on
/// standard error says so; with `overwrite` they are removed. That is, of a run that
///  - begins, or goes on from a checkpoint elsewhere: all of it, if anything was trained;
///  - goes back to an earlier one of the folder's checkpoints, or goes on from one of a run that has ended
///  behind
///    it: a copy of what tells of the old run, and the later checkpoints.
/// What a run may be reading meanwhile (run.json, plans, changes.json, model.safetensors) is copied, not
/// moved. Half-written files of processes that were killed go; other files stay. RunError if that cannot be
/// done.
void prepare_run_folder(const std::filesystem::path& folder, const std::optional<Checkpoint>& resume,
                        bool overwrite = false);

/// Before a run goes on from the latest checkpoint: what a run whose launcher was killed has kept in memory
/// becomes one (save_kept_state()). InputError if a run writes in the folder; RunError.
void adopt_kept_state(const std::filesystem::path& folder, const OnHost& on_host = {});

/// Makes the folder ready for ranks that start anew after a loss and go on from `next_minibatch`:
/// half-written files, checkpoints from behind it, and what tells of the end of the ranks before, go.
/// RunError if that cannot be done.
void tidy_run_folder(const std::filesystem::path& folder, int64_t next_minibatch);

/// RunError unless the run folder is there, with all of these in it: somebody has removed what the run wrote.
void demand_run_files(const std::filesystem::path& folder, const std::vector<std::string>& names);

}  // namespace pipewright
