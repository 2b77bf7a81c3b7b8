#include "runtime/transport/open_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr const char* kRemedy =
    "ulimit -n says how many this process may have, and sets more of them up to the hard limit (ulimit -Hn).";

std::string limit_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return " (the limit is " + std::to_string(limit.rlim_cur) + ")";
}

}  // namespace

void raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // best effort
}

void demand_descriptor(const std::string& what) {
  const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) {
    ::close(descriptor);
    return;
  }
  if (errno == EMFILE || errno == ENFILE)
    throw RunError(what + ": " + std::strerror(errno) + limit_text(), kRemedy);
}

void demand_open_files(int64_t files, const std::string& what) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (static_cast<int64_t>(limit.rlim_cur) >= files) return;
  throw RunError(what + " needs about " + std::to_string(files) + " open files, this process may have " +
                     std::to_string(limit.rlim_cur),
                 kRemedy);
}

}  // namespace pipewright
