// Finished runs as a page for people.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "graph/topology.h"
#include "runtime/commands/run_report.h"

namespace pipewright {

/// What a prediction is made of, beside the plan.
struct PredictedWith {
  Profile profile;
  Topology topology;
};

/// For `file`. Of one run: what it did against what its plan said, its timeline (with `predicted` below that
/// of the simulation), what each rank's time went into, its memory over time, its stages, which weights each
/// minibatch read, losses and evaluations, whether it was verified, what changed on the way; with `predicted`
/// also its graph, and whether data parallelism on its ranks would be faster, by how fast the links are. Of
/// several: the tables of run_report(), and their losses in one chart. InputError for a profile of another
/// graph than the plan's.
std::string run_page(const std::vector<FinishedRun>& runs, const std::optional<PredictedWith>& predicted,
                     const std::filesystem::path& file);

/// InputError unless --report's `file` is a page's name in a folder that is there: pages are written when all
/// else is done. `run_folder`: one that the command makes itself.
void check_page_place(const std::filesystem::path& file, const std::filesystem::path& run_folder);

}  // namespace pipewright
