// Drawings of schedules and simulations: text for terminals and tests, SVG for people, trace events for
// Perfetto.
#pragma once

#include <string>

#include "runtime/schedule/simulate.h"

namespace pipewright {

/// One row a rank, one column a slot of `slot_seconds`: "F0 F1 .. B0". For schedules with unit times.
std::string draw_text(const Simulation& simulation, double slot_seconds);
/// Self-contained SVG: one lane a rank, forward and backward in two colours, minibatch numbers where they
/// fit.
std::string draw_svg(const Simulation& simulation, const std::string& title);
/// Chrome trace events (JSON text), pid = rank.
std::string trace_json(const Simulation& simulation);

}  // namespace pipewright
