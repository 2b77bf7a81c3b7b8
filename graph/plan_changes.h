// CHANGES.json: which plan takes over before which minibatch, and which layers are frozen from there on
// (docs/formats.md). May be written by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pipewright {

struct PlanChange {
  int64_t minibatch = 0;  ///< the first that the plan trains, 1 or more
  std::string plan;       ///< its file, as the document says; "": the plan before it goes on
  /// Layers that are frozen from there on; nothing: those that were, or more if the plan takes more as
  /// frozen.
  std::optional<int64_t> freeze = {};
  /// From there on, of what the run says; nothing: as before.
  std::optional<int64_t> gradient_accumulation = {};  ///< in the place of the run's
  std::optional<double> learning_rate_scale = {};     ///< times the run's learning rate
};

/// [{"minibatch": 400, "plan": "b.json"}, {"minibatch": 800, "freeze": 3}, ...]: one change or more, by
/// rising minibatch, each with something that changes; a layer that is frozen stays so. InputError otherwise.
std::vector<PlanChange> parse_plan_changes(const std::string& text, const std::string& where);
/// Of a file. Files of plans that are no absolute paths are made such, from the folder of this one on.
std::vector<PlanChange> read_plan_changes(const std::filesystem::path& file);
/// What parse_plan_changes() reads back.
std::string plan_changes_text(const std::vector<PlanChange>& changes);

}  // namespace pipewright
