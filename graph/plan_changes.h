// CHANGES.json: which plan takes over before which minibatch (docs/formats.md). May be written by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pipewright {

struct PlanChange {
  int64_t minibatch = 0;  ///< the first that the plan trains, 1 or more
  std::string plan;       ///< its file, as the document says
};

/// [{"minibatch": 400, "plan": "b.json"}, ...]: one change or more, by rising minibatch. InputError
/// otherwise.
std::vector<PlanChange> parse_plan_changes(const std::string& text, const std::string& where);
/// Of a file. Files of plans that are no absolute paths are made such, from the folder of this one on.
std::vector<PlanChange> read_plan_changes(const std::filesystem::path& file);
/// What parse_plan_changes() reads back.
std::string plan_changes_text(const std::vector<PlanChange>& changes);

}  // namespace pipewright
