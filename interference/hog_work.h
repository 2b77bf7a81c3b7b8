// What the built-in hogs do over and over.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace pipewright {

/// To add one: a function that makes its round, and a row.
struct HogKind {
  const char* name;
  const char* summary;
  /// Makes what a round needs and returns the round: some milliseconds of work at most. RunError.
  std::function<void()> (*make)();
};
/// "matrix", "copy", "loopback".
const std::vector<HogKind>& hog_kinds();
/// InputError with the nearest name: `where` says who asks.
const HogKind& hog_kind(const std::string& name, const std::string& where);

}  // namespace pipewright
