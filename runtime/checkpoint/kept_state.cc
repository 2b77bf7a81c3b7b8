#include "runtime/checkpoint/kept_state.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "graph/error.h"
#include "graph/units.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_keeper.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMemory = "/dev/shm";
constexpr const char* kPrefix = "pipewright-kept-";

int64_t free_bytes(const char* folder) {
  struct statvfs found {};
  if (::statvfs(folder, &found) != 0) return 0;
  return static_cast<int64_t>(found.f_bavail) * static_cast<int64_t>(found.f_frsize);
}

[[noreturn]] void cannot_make(const fs::path& folder, const std::string& why) {
  throw RunError(folder.string() + ": cannot be made: " + why,
                 "The state from which a lost rank is recovered is kept there; --on-loss end keeps none.");
}

}  // namespace

fs::path kept_state_of(const fs::path& run_folder) { return run_folder / ".kept"; }

void make_kept_state(const fs::path& run_folder, int64_t bytes, bool on_one_host) {
  remove_kept_state(run_folder);
  const fs::path place = kept_state_of(run_folder);
  const int64_t room = on_one_host ? free_bytes(kMemory) : 0;
  std::error_code error;
  if (room > bytes) {
    std::string folder = fs::path(kMemory) / (std::string(kPrefix) + "XXXXXX");
    if (::mkdtemp(folder.data()) == nullptr) cannot_make(folder, std::strerror(errno));
    fs::create_directory_symlink(folder, place, error);
    if (error) cannot_make(place, error.message());
    return;
  }
  fs::create_directory(place, error);
  if (error) cannot_make(place, error.message());
  const std::string why = on_one_host ? std::string(kMemory) + " has room for " +
                                            format_bytes(static_cast<double>(room)) + ", " +
                                            format_bytes(static_cast<double>(bytes)) + " may be needed"
                                      : "the ranks are on several hosts, which share the run folder";
  std::fprintf(stderr, "the state for lost ranks is kept on the disk, in %s: %s\n", place.c_str(),
               why.c_str());
}

void remove_kept_state(const fs::path& run_folder) noexcept {
  try {
    const fs::path place = kept_state_of(run_folder);
    std::error_code error;
    if (fs::is_symlink(place)) {
      const fs::path target = fs::read_symlink(place);
      if (target.filename().string().rfind(kPrefix, 0) == 0) fs::remove_all(target, error);
      fs::remove(place, error);
    } else {
      fs::remove_all(place, error);
    }
  } catch (const std::exception&) {
    // Room that is not given back is no reason to fail.
  }
}

fs::path save_kept_state(const fs::path& run_folder) {
  const auto kept = list_checkpoints(kept_state_of(run_folder));
  if (kept.empty()) return {};
  const Checkpoint newest = open_checkpoint(kept.front());
  const auto written = list_checkpoints(run_folder);
  if (!written.empty() &&
      open_checkpoint(written.front()).manifest.next_minibatch >= newest.manifest.next_minibatch)
    return {};
  const fs::path partial = partial_checkpoint(run_folder, newest.manifest.next_minibatch);
  const fs::path folder = checkpoints_of(run_folder) / kept.front().filename();
  try {
    fs::create_directories(partial);
    fs::copy(newest.folder, partial, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    fs::rename(partial, folder);
  } catch (const fs::filesystem_error& error) {
    throw RunError(folder.string() + ": cannot be written: " + error.code().message(),
                   "What was kept is still in " + newest.folder.string() + ".");
  }
  return folder;
}

}  // namespace pipewright
