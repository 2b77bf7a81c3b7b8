// What a launcher is told to do, as tests write and compare it: "start 1: 0 3 2", "kill 1", "end lost: ...".
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "runtime/coordinator/attempts.h"

namespace pipewright::testing {

inline std::string text_of(const LauncherCommand& command) {
  std::ostringstream out;
  if (const auto* start = std::get_if<StartAttempt>(&command)) {
    out << "start " << start->attempt << ":";
    for (const Slot slot : start->slots) out << " " << slot;
  } else if (const auto* stop = std::get_if<StopAttempt>(&command)) {
    out << (stop->drain ? "drain " : "kill ") << stop->attempt;
  } else {
    const auto& end = std::get<EndJob>(command);
    const char* const names[] = {"done", "failed", "lost", "interrupted"};
    out << "end " << names[static_cast<int>(end.outcome)] << (end.reason.empty() ? "" : ": ") << end.reason;
  }
  return out.str();
}

inline std::string text_of(const std::vector<LauncherCommand>& commands) {
  std::string text;
  for (const LauncherCommand& command : commands) text += (text.empty() ? "" : ", ") + text_of(command);
  return text;
}

}  // namespace pipewright::testing
