// The search where it matters which devices run a stage: several levels of links, shared links, devices that
// differ. For the search's own files.
//
// Devices stand in a row, server by server; the last stage takes the first of them, the one before it the
// next. So a suffix of the model fills devices 0..D-1. It acts on the stages before it through D (as on one
// level), and through the group that it leaves half filled: by what its links carry already and by how much
// of its first stage is there. Suffixes that leave a group filled alike (D modulo the devices of the largest
// group) are compared by D and by those loads (labels.h); the rest are kept side by side. Suffixes that leave
// no room for what comes before them are left out (reach.h).
//
// Besides stretches of devices, a run of layers may be a pipeline inside a server, the same on several
// servers (two levels of separate links): minibatches then stay in their server.
#pragma once

#include <optional>

#include "optimizer/search/inference.h"
#include "optimizer/search/search.h"
#include "optimizer/search/stage_places.h"

namespace pipewright::search_detail {

/// The search ends when no period smaller by this part is possible.
inline constexpr double kPlacedProof = 1e-12;

/// search() for inputs with placed().
std::optional<Answer> search_placed(const Question& question);
/// The same among plans that obey. `proof`: no period smaller by this part is possible.
std::optional<Answer> search_placed(const Question& question, const StagePlaces& places, double proof);

/// search_inference() for inputs with placed(): exact for stages on consecutive devices.
std::optional<InferenceAnswer> search_placed_inference(const Question& question, double period_seconds);

}  // namespace pipewright::search_detail
