#include "runtime/launch/rank_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
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
  void close_writer() { close(std::exchange(ends_[1], -1)); }

 private:
  int ends_[2] = {-1, -1};
};

// What the process has as its standard streams.
class Streams {
 public:
  Streams() = default;
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  ~Streams() {
    for (const int descriptor : opened_) close(descriptor);
  }
  void connect(int stream, int with) { with_.at(static_cast<size_t>(stream)) = with; }
  void connect_with_nothing(int stream, int mode) {
    const int nothing = open("/dev/null", mode | O_CLOEXEC);
    if (nothing < 0) throw RunError(std::string("/dev/null: ") + std::strerror(errno));
    opened_.push_back(nothing);
    connect(stream, nothing);
  }
  /// In the new process: calls that a signal handler may make, and no others.
  bool take() const {
    for (size_t stream = 0; stream < with_.size(); ++stream) {
      const int target = static_cast<int>(stream), with = with_[stream];
      // One that is there already would be closed.
      if (with >= 0 && (with == target ? fcntl(with, F_SETFD, 0) : dup2(with, target)) < 0) return false;
    }
    return true;
  }

 private:
  std::array<int, 3> with_ = {-1, -1, -1};  // -1: ours
  std::vector<int> opened_;
};

std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable; ++variable) variables.emplace_back(*variable);
  return variables;
}

struct Program {
  std::string file = "/proc/self/exe";
  std::vector<std::string> arguments;  // the first is its name
  std::vector<std::string> environment = own_environment();

  void unset(const std::string& name) {
    std::erase_if(environment, [&](const std::string& entry) { return entry.rfind(name + "=", 0) == 0; });
  }
};

Program program_of(const RankStart& start) {
  Program program;
  program.arguments = {"pipewright-runtime", start.command};
  program.arguments.insert(program.arguments.end(), start.arguments.begin(), start.arguments.end());
  for (const char* name :
       {"TORCHELASTIC_RESTART_COUNT", "PIPEWRIGHT_PROGRESS_TERMINAL", "PIPEWRIGHT_NO_PROGRESS", kPinVariable})
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

// Where a file of that name may be: as a shell looks for it.
std::vector<std::string> places_of(const std::string& file) {
  const char* const path = std::getenv("PATH");
  if (file.find('/') != std::string::npos || !path) return {file};
  std::vector<std::string> places;
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');)
    places.push_back((folder.empty() ? "." : folder) + "/" + file);
  return places;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& text : strings) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// Starts `program` as the leader of a process group of its own; its pid, or what errno says of why not. Not
// posix_spawn(), which waits until the new process has become the program: one that is stopped before would
// stop this one, too.
struct Started {
  pid_t pid = -1;
  int error = 0;
};
Started start_process(Program program, const Streams& streams) {
  constexpr int kMostWaited = 2000;  // ms; usually a fraction of one
  Pipe failure;                      // the new process writes why it fails; becoming the program closes it
  const std::vector<char*> arguments = pointers(program.arguments),
                           environment = pointers(program.environment);
  const std::vector<std::string> files = places_of(program.file);
  const pid_t pid = _Fork();
  if (pid < 0) return {-1, errno};
  if (pid == 0) {
    setpgid(0, 0);
    if (streams.take())
      for (const std::string& file : files) execve(file.c_str(), arguments.data(), environment.data());
    const int why = errno;
    const ssize_t written = write(failure.writer(), &why, sizeof why);
    static_cast<void>(written);
    _exit(127);
  }
  failure.close_writer();
  struct pollfd told = {failure.reader(), POLLIN, 0};
  int why = 0;
  if (poll(&told, 1, kMostWaited) == 1 && read(failure.reader(), &why, sizeof why) == sizeof why) {
    waitpid(pid, nullptr, 0);
    return {-1, why};
  }
  return {pid, 0};
}

}  // namespace

RankProcess start_rank(const RankStart& start) {
  const bool is_here = start.host.empty();
  Program program = is_here ? program_here(start) : program_elsewhere(start);
  std::optional<Pipe> output(std::in_place), secret;
  if (!is_here) secret.emplace();
  Streams streams;
  if (secret) {
    streams.connect(STDIN_FILENO, secret->reader());
  } else {
    streams.connect_with_nothing(STDIN_FILENO, O_RDONLY);
  }
  if (start.rank != 0) {
    streams.connect(STDOUT_FILENO, output->writer());
  } else if (!start.results) {
    streams.connect_with_nothing(STDOUT_FILENO, O_WRONLY);
  }
  streams.connect(STDERR_FILENO, output->writer());
  RankProcess process;
  const std::string file = program.file;
  const Started started = start_process(std::move(program), streams);
  if (started.pid < 0) {
    throw RunError("rank " + std::to_string(start.rank) + " cannot be started: " + file + ": " +
                   std::strerror(started.error));
  }
  process.pid = started.pid;
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
  Program program;
  program.arguments.assign(std::istream_iterator<std::string>(shell), {});
  PW_CHECK(!program.arguments.empty(), "no remote shell");
  program.file = program.arguments[0];
  program.arguments.insert(program.arguments.end(), {host, shell_line(words)});
  Streams streams;
  streams.connect_with_nothing(STDIN_FILENO, O_RDONLY);
  std::optional<Pipe> pipe;
  if (output) {
    pipe.emplace();
    fcntl(pipe->reader(), F_SETFL, O_NONBLOCK);
    streams.connect(STDOUT_FILENO, pipe->writer());
  } else {
    streams.connect_with_nothing(STDOUT_FILENO, O_WRONLY);
  }
  streams.connect_with_nothing(STDERR_FILENO, O_WRONLY);
  const auto take_output = [&] {
    char piece[4096];
    for (ssize_t n = 0; pipe && (n = read(pipe->reader(), piece, sizeof piece)) > 0;)
      output->append(piece, static_cast<size_t>(n));
  };
  const pid_t pid = start_process(std::move(program), streams).pid;
  if (pid < 0) return false;
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
