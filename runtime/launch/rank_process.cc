#include "runtime/launch/rank_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "graph/error.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/hosts.h"

extern char** environ;

namespace pipewright {
namespace {

class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_, O_CLOEXEC) != 0) throw RunError(std::string("pipe: ") + std::strerror(errno));
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    for (const int end : ends_)
      if (end >= 0) close(end);
  }
  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }
  /// The caller's from now on.
  int take_reader() { return std::exchange(ends_[0], -1); }

 private:
  int ends_[2] = {-1, -1};
};

// What the process has as its standard streams, and its group.
class Surroundings {
 public:
  Surroundings() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes_, 0);
  }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;
  ~Surroundings() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  void connect(int stream, int with) { posix_spawn_file_actions_adddup2(&actions_, with, stream); }
  void connect_with_nothing(int stream, int mode) {
    posix_spawn_file_actions_addopen(&actions_, stream, "/dev/null", mode, 0);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

struct Program {
  std::string file = "/proc/self/exe";
  std::vector<std::string> arguments;  // the first is its name
  std::vector<std::string> environment;

  void unset(const std::string& name) {
    std::erase_if(environment, [&](const std::string& entry) { return entry.rfind(name + "=", 0) == 0; });
  }
};

Program program_of(const RankStart& start) {
  Program program;
  program.arguments = {"pipewright-runtime", start.command};
  program.arguments.insert(program.arguments.end(), start.arguments.begin(), start.arguments.end());
  for (char** variable = environ; *variable; ++variable) program.environment.push_back(*variable);
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "PIPEWRIGHT_PROGRESS_TERMINAL", kPinVariable})
    program.unset(name);
  return program;
}

Program program_here(const RankStart& start) {
  Program program = program_of(start);
  program.unset(kSecretVariable);
  program.environment.push_back(kSecretVariable + ("=" + start.secret));
  for (const std::string& variable : start.variables) {
    program.unset(variable.substr(0, variable.find('=')));
    program.environment.push_back(variable);
  }
  return program;
}

// What starts this program: of an installed one the script that looks for the host's LibTorch.
std::filesystem::path starter_of(const std::filesystem::path& program) {
  const std::filesystem::path folder = program.parent_path();
  return folder.filename() == "libexec" ? folder.parent_path() / "bin" / program.filename() : program;
}

// The remote shell, which starts ours there.
Program program_elsewhere(const RankStart& start) {
  Program program = program_of(start);
  std::vector<std::string> line = {"exec", "env"};
  line.insert(line.end(), start.variables.begin(), start.variables.end());
  program.arguments[0] = program_on_other_hosts();
  line.insert(line.end(), program.arguments.begin(), program.arguments.end());
  // Command lines are for everybody on both hosts to see: the secret goes over standard input.
  const std::string inner = "cd " + shell_line({std::filesystem::current_path().string()}) + " && read -r " +
                            kSecretVariable + " && export " + kSecretVariable + " && " + shell_line(line) +
                            " </dev/null";
  std::istringstream words(start.remote_shell);
  program.arguments.assign(std::istream_iterator<std::string>(words), {});
  PW_CHECK(!program.arguments.empty(), "no remote shell");
  program.file = program.arguments[0];
  // Whatever the user's shell there is.
  program.arguments.insert(program.arguments.end(), {start.host, "exec sh -c " + shell_line({inner})});
  return program;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& text : strings) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

RankProcess start_rank(const RankStart& start) {
  const bool is_here = start.host.empty();
  Program program = is_here ? program_here(start) : program_elsewhere(start);
  std::optional<Pipe> output(std::in_place), secret;
  if (!is_here) secret.emplace();
  Surroundings around;
  if (secret) {
    around.connect(STDIN_FILENO, secret->reader());
  } else {
    around.connect_with_nothing(STDIN_FILENO, O_RDONLY);
  }
  if (start.rank != 0) {
    around.connect(STDOUT_FILENO, output->writer());
  } else if (!start.results) {
    around.connect_with_nothing(STDOUT_FILENO, O_WRONLY);
  }
  around.connect(STDERR_FILENO, output->writer());
  RankProcess process;
  if (const int failed =
          posix_spawnp(&process.pid, program.file.c_str(), around.actions(), around.attributes(),
                       pointers(program.arguments).data(), pointers(program.environment).data())) {
    throw RunError("rank " + std::to_string(start.rank) + " cannot be started: " + program.file + ": " +
                   std::strerror(failed));
  }
  if (secret) {
    const std::string line = start.secret + "\n";  // less than a pipe holds
    const ssize_t written = write(secret->writer(), line.data(), line.size());
    static_cast<void>(written);  // a shell that has gone says so by its exit code
  }
  process.output = output->take_reader();
  return process;
}

std::string program_on_other_hosts() {
  return starter_of(std::filesystem::read_symlink("/proc/self/exe")).string();
}

bool run_elsewhere(const std::string& remote_shell, const std::string& host,
                   const std::vector<std::string>& words, std::chrono::milliseconds patience,
                   std::string* output) {
  std::istringstream shell(remote_shell);
  std::vector<std::string> arguments(std::istream_iterator<std::string>(shell), {});
  PW_CHECK(!arguments.empty(), "no remote shell");
  arguments.insert(arguments.end(), {host, shell_line(words)});
  Surroundings around;
  around.connect_with_nothing(STDIN_FILENO, O_RDONLY);
  std::optional<Pipe> pipe;
  if (output) {
    pipe.emplace();
    fcntl(pipe->reader(), F_SETFL, O_NONBLOCK);
    around.connect(STDOUT_FILENO, pipe->writer());
  } else {
    around.connect_with_nothing(STDOUT_FILENO, O_WRONLY);
  }
  around.connect_with_nothing(STDERR_FILENO, O_WRONLY);
  const auto take_output = [&] {
    char piece[4096];
    for (ssize_t n = 0; pipe && (n = read(pipe->reader(), piece, sizeof piece)) > 0;)
      output->append(piece, static_cast<size_t>(n));
  };
  pid_t pid = -1;
  if (posix_spawnp(&pid, arguments[0].c_str(), around.actions(), around.attributes(),
                   pointers(arguments).data(), environ) != 0)
    return false;
  const auto until = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    take_output();
    if (std::chrono::steady_clock::now() > until) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  take_output();
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace pipewright
