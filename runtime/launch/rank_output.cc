#include "runtime/launch/rank_output.h"

#include <algorithm>
#include <fstream>
#include <utility>

namespace pipewright {
namespace {

// As print_error() of graph/command_line.h writes them.
constexpr std::string_view kErrorLine = "pipewright-runtime: error: ";
constexpr std::string_view kRemedyLine = "  ";

}  // namespace

std::optional<Error> last_error(const std::filesystem::path& log, ExitCode code) {
  std::optional<Error> found;
  std::ifstream in(log);
  bool follows = false;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(kErrorLine, 0) == 0) {
      found.emplace(code, line.substr(kErrorLine.size()));
      follows = true;
      continue;
    }
    if (follows && line.rfind(kRemedyLine, 0) == 0) {
      const std::string what = found->what();
      found.emplace(code, what, line.substr(kRemedyLine.size()));
    }
    follows = false;
  }
  return found;
}

std::string WithoutErrors::take(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool ends = c == '\n' || c == '\r';
    if (passing_) {
      out += c;
    } else {
      line_ += c;
      const bool error = begins(kErrorLine);
      const bool remedy = after_error_ && begins(kRemedyLine);
      if (!error && !remedy) {
        out += std::exchange(line_, {});
        passing_ = true;
        after_error_ = false;
      } else if (ends) {
        after_error_ = error;
        held_ += std::exchange(line_, {});
      }
    }
    if (ends) passing_ = false;
  }
  return out;
}

std::string WithoutErrors::held() { return std::exchange(held_, {}) + std::exchange(line_, {}); }

// Is, or may become, a line that begins so.
bool WithoutErrors::begins(std::string_view with) const {
  const size_t size = std::min(line_.size(), with.size());
  return std::string_view(line_).substr(0, size) == with.substr(0, size);
}

}  // namespace pipewright
