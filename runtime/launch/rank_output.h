// What the ranks of a job print, as their launcher shows it: what ended the job is said once, at its end.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "graph/error.h"

namespace pipewright {

/// The last error that a rank has written into its log, and what cures it, with this code; nothing if there
/// is none.
std::optional<Error> last_error(const std::filesystem::path& log, ExitCode code);

/// What rank 0 prints, but its errors with their remedies: those are held back. Passes on at once what it
/// can, as a line may be rewritten without ever ending.
class WithoutErrors {
 public:
  /// What can be shown now.
  std::string take(std::string_view text);
  /// What was held back since the last call.
  std::string held();

 private:
  bool begins(std::string_view with) const;

  std::string line_, held_;
  bool passing_ = false;
  bool after_error_ = false;
};

}  // namespace pipewright
