// Files whose server has gone: a system call on one of them stands until the server comes back, and a signal
// that a handler takes does not end it.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace pipewright {

struct FilePatience {
  std::chrono::milliseconds longest;
  /// The exit code of a signal that came meanwhile, 0: none. After one the bound is three seconds, if that
  /// is less. nullptr for programs whose signals end them at once.
  int (*exit_code_of_signal)() = nullptr;
};

/// For the whole process; until then PIPEWRIGHT_FILE_TIMEOUT of the environment, 60 s without it. Programs
/// with --timeout set it as soon as they know it.
void set_file_patience(const FilePatience& patience);

/// While one lives, its thread opens, lists or reads `file`. A watcher, the process's only one, looks ten
/// times a second: after three seconds without advance() it says on standard error for what the process
/// waits, and after the patience it ends the process, with one line and exit code 1 or that of the signal.
/// Nothing less would do: the thread cannot be woken. Time in which the process was stopped does not count.
class FileWatch {
 public:
  /// `file` outlives the watch.
  explicit FileWatch(const std::filesystem::path& file);
  explicit FileWatch(std::filesystem::path&&) = delete;
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  /// A call has come back: the file's server is there.
  void advance();

 private:
  friend class FileWatcher;
  const std::filesystem::path& file_;
  double stood_seconds_ = 0;
  bool announced_ = false;
};

/// For messages of other watchers: ", reading FILE" of the file for which the process has waited longest, if
/// that is a fifth of a second or more; else "".
std::string file_waited_for();

}  // namespace pipewright
