#include "graph/file_watch.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <mutex>
#include <thread>

#include "graph/error.h"
#include "graph/units.h"

namespace pipewright {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr double kSilentSeconds = 3;
constexpr double kPatienceAfterSignal = 3;  // seconds
constexpr double kNamedSeconds = 0.2;       // local files take less

}  // namespace

class FileWatcher {
 public:
  static FileWatcher& instance() {
    static auto* const watcher = new FileWatcher;  // for ever: its thread may look while the process ends
    return *watcher;
  }

  void set(const FilePatience& patience) {
    const std::lock_guard lock(mutex_);
    patience_ = patience;
  }

  void add(FileWatch* watch) {
    const std::lock_guard lock(mutex_);
    if (!watching_) {
      watching_ = true;
      std::thread([this] { watch_files(); }).detach();
    }
    watches_.push_back(watch);
  }

  void remove(FileWatch* watch) {
    const std::lock_guard lock(mutex_);
    watches_.remove(watch);
  }

  void advance(FileWatch* watch) {
    const std::lock_guard lock(mutex_);
    watch->stood_seconds_ = 0;
  }

  std::string longest() {
    const std::lock_guard lock(mutex_);
    const FileWatch* found = nullptr;
    for (const FileWatch* watch : watches_) {
      if (!found || watch->stood_seconds_ > found->stood_seconds_) found = watch;
    }
    if (!found || found->stood_seconds_ < kNamedSeconds) return "";
    return ", reading " + found->file_.string();
  }

 private:
  // Only intervals that this thread has seen count: a process that was stopped for an hour (Ctrl-Z) goes on.
  void watch_files() {
    while (true) {
      std::this_thread::sleep_for(kInterval);
      const std::lock_guard lock(mutex_);
      for (FileWatch* watch : watches_) look(*watch);
    }
  }

  void look(FileWatch& watch) const {
    watch.stood_seconds_ += std::chrono::duration<double>(kInterval).count();
    const int signal_code = patience_.exit_code_of_signal ? patience_.exit_code_of_signal() : 0;
    const double longest = std::chrono::duration<double>(patience_.longest).count();
    const double stood = watch.stood_seconds_;
    if (signal_code != 0 && stood > std::min(longest, kPatienceAfterSignal)) {
      end(watch, signal_code, "ended by a signal");
    }
    if (stood > longest) end(watch, static_cast<int>(ExitCode::kFailed), "given up");
    if (stood > kSilentSeconds && !watch.announced_) {
      watch.announced_ = true;
      std::fprintf(stderr, "waiting for %s: it has not answered for %.0f s; does its server?\n",
                   watch.file_.c_str(), std::floor(stood));
    }
  }

  [[noreturn]] static void end(const FileWatch& watch, int code, const char* what) {
    std::fprintf(stderr, "%s: error: %s: has not answered for %.1f s; %s\n", program_invocation_short_name,
                 watch.file_.c_str(), watch.stood_seconds_, what);
    std::fprintf(stderr, "  The file's server is likely gone: try ls -l %s; then start again.\n",
                 watch.file_.c_str());
    std::fflush(stderr);
    std::_Exit(code);
  }

  // Nothing else can say it before a file with options is read.
  static std::chrono::milliseconds from_environment() {
    constexpr const char* kVariable = "PIPEWRIGHT_FILE_TIMEOUT";
    const char* text = std::getenv(kVariable);
    return std::chrono::milliseconds(text ? static_cast<int64_t>(1000 * parse_seconds(text, kVariable))
                                          : 60'000);
  }

  std::mutex mutex_;
  FilePatience patience_{from_environment()};
  std::list<FileWatch*> watches_;
  bool watching_ = false;
};

void set_file_patience(const FilePatience& patience) { FileWatcher::instance().set(patience); }

FileWatch::FileWatch(const std::filesystem::path& file) : file_(file) { FileWatcher::instance().add(this); }
FileWatch::~FileWatch() { FileWatcher::instance().remove(this); }
void FileWatch::advance() { FileWatcher::instance().advance(this); }

std::string file_waited_for() { return FileWatcher::instance().longest(); }

}  // namespace pipewright
