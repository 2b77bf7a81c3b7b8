// Real processes in tests: started, watched, killed; never left behind.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace pipewright::testing {

/// Standard output and error go to files. The destructor kills the process and whatever it started in its
/// group.
class Process {
 public:
  Process(const std::vector<std::string>& command, const std::filesystem::path& output,
          const std::filesystem::path& error, const std::map<std::string, std::string>& variables = {})
      : output_(output), error_(error) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, error.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
    std::vector<std::string> words = command;
    std::vector<std::string> environment;
    for (char** entry = environ; *entry; ++entry) {
      const std::string text = *entry;
      if (!variables.count(text.substr(0, text.find('=')))) environment.push_back(text);
    }
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    const auto pointers = [](std::vector<std::string>& strings) {
      std::vector<char*> list;
      for (auto& text : strings) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    const int failed = posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, pointers(words).data(),
                                   pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    if (failed) throw std::runtime_error("cannot start " + words[0]);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (exit_code_ != kRunning) return;
    for (const pid_t child : children()) ::kill(child, SIGKILL);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  /// Exit code, 128 + signal for a killed one, or kRunning if it still runs after `bound`.
  static constexpr int kRunning = -1;
  int wait(std::chrono::milliseconds bound) {
    const auto deadline = std::chrono::steady_clock::now() + bound;
    while (exit_code_ == kRunning) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      } else if (std::chrono::steady_clock::now() > deadline) {
        break;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return exit_code_;
  }

  std::string output() const { return contents(output_); }
  std::string error() const { return contents(error_); }

  /// Processes it has started and that still run.
  std::vector<pid_t> children() const {
    std::ifstream in("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
    return {std::istream_iterator<pid_t>(in), {}};
  }

  static std::string contents(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  pid_t pid_ = -1;
  int exit_code_ = kRunning;
  std::filesystem::path output_;
  std::filesystem::path error_;
};

/// Waits until `condition` holds, `bound` at most; returns whether it does.
template <typename Condition>
bool eventually(std::chrono::milliseconds bound, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace pipewright::testing
