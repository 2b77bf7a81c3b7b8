// Files as documents need them: read whole, written whole or not at all.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "graph/regular_file.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

constexpr int kNoWriterSeconds = 3;  // a shell opens both ends before the program starts
constexpr int kSilentWriterSeconds = 60;
// Of a read: what a slow server brings well within the patience of a FileWatch.
constexpr int64_t kBytesAtOnce = 16 << 20;

std::string errno_text(int error) { return std::strerror(error); }

std::string nearest_file(const fs::path& file) {
  constexpr size_t kMostFiles = 1000;
  std::vector<std::string> names;
  std::error_code error;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const FileWatch watch(folder);
  for (fs::directory_iterator it(folder, error), end; !error && it != end && names.size() < kMostFiles;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return nearest(file.filename().string(), names);
}

[[noreturn]] void cannot_be_read(const fs::path& file, int error) {
  throw InputError(file.string() + ": cannot be read: " + errno_text(error));
}

// What the file is, without opening it: some devices do something when they are opened.
mode_t kind_of(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) {
    const int error = errno;
    const std::string near = error == ENOENT ? nearest_file(file) : "";
    throw InputError(file.string() + ": cannot be read: " + errno_text(error) +
                     (near.empty() ? "" : "; did you mean '" + (file.parent_path() / near).string() + "'?"));
  }
  return status.st_mode;
}

[[noreturn]] void refuse(const fs::path& file, mode_t kind) {
  const char* what = S_ISDIR(kind)    ? "a folder"
                     : S_ISFIFO(kind) ? "a pipe"
                     : S_ISSOCK(kind) ? "a socket"
                                      : "a device";
  throw InputError(file.string() + ": is " + what + ", expected a file");
}

// Opens without waiting, and looks again: what the name leads to may be another file by now.
int opened(const fs::path& file, bool pipe, struct stat& status) {
  const FileWatch watch(file);
  const mode_t before = kind_of(file);
  if (!S_ISREG(before) && !(pipe && S_ISFIFO(before))) refuse(file, before);
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) cannot_be_read(file, errno);
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    cannot_be_read(file, error);
  }
  if (!S_ISREG(status.st_mode) && !(pipe && S_ISFIFO(status.st_mode))) {
    ::close(descriptor);
    refuse(file, status.st_mode);
  }
  return descriptor;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Waits until a pipe has something to read or its writers have gone.
void await_pipe(const fs::path& file, int descriptor, int seconds) {
  pollfd waited{descriptor, POLLIN, 0};
  if (::poll(&waited, 1, 1000 * seconds) == 0) {
    throw InputError(file.string() + ": is a pipe to which nobody has written for " +
                     std::to_string(seconds) + " s");
  }
}

}  // namespace

RegularFile::RegularFile(const fs::path& file) : file_(file) {
  if (file.empty()) throw InputError("the name of a file is empty");
  struct stat status {};
  descriptor_ = opened(file, false, status);
  bytes_ = static_cast<int64_t>(status.st_size);
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : file_(std::move(other.file_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

void RegularFile::read(int64_t offset, void* into, int64_t count) const {
  FileWatch watch(file_);
  char* at = static_cast<char*>(into);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, at, static_cast<size_t>(std::min(count, kBytesAtOnce)),
                                static_cast<off_t>(offset));
    watch.advance();
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_be_read(file_, errno);
    if (got == 0) {
      throw InputError(file_.string() + ": ends at byte " + std::to_string(offset) + ", " +
                       std::to_string(count) + " bytes early: it was cut while it was read");
    }
    at += got;
    offset += got;
    count -= got;
  }
}

bool file_exists(const fs::path& file) {
  const FileWatch watch(file);
  std::error_code ignored;
  return fs::exists(file, ignored);
}

namespace {

// Spreadsheets and editors put a mark in front of a text that says how it is encoded.
std::string without_mark(std::string bytes, const fs::path& file) {
  if (bytes.starts_with("\xef\xbb\xbf")) bytes.erase(0, 3);
  if (!bytes.starts_with("\xff\xfe") && !bytes.starts_with("\xfe\xff")) return bytes;
  throw InputError(
      file.string() + ": is a text in UTF-16 (it begins with its byte order mark), expected UTF-8",
      "Save it as UTF-8, or: iconv -f UTF-16 -t UTF-8 " + file.string() + " > OTHER");
}

}  // namespace

std::string read_regular_file(const fs::path& file) {
  const RegularFile opened(file);
  std::string bytes(static_cast<size_t>(opened.bytes()), '\0');
  opened.read(0, bytes.data(), opened.bytes());
  return without_mark(std::move(bytes), file);
}

std::string read_file(const fs::path& file) {
  if (file.empty()) throw InputError("the name of a file is empty");
  struct stat status {};
  const Descriptor descriptor(opened(file, true, status));
  bool awaited = !S_ISFIFO(status.st_mode);
  std::optional<FileWatch> watch;  // pipes have bounds of their own
  if (awaited) watch.emplace(file);
  std::string bytes;
  bytes.reserve(static_cast<size_t>(status.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(descriptor.get(), buffer, sizeof(buffer));
    if (watch) watch->advance();
    if (count > 0) {
      bytes.append(buffer, static_cast<size_t>(count));
    } else if (count < 0 && errno == EAGAIN) {
      await_pipe(file, descriptor.get(), kSilentWriterSeconds);
    } else if (count < 0 && errno != EINTR) {
      cannot_be_read(file, errno);
    } else if (count == 0 && bytes.empty() && !awaited) {
      awaited = true;  // a pipe that no writer has opened yet reads as if it had ended
      await_pipe(file, descriptor.get(), kNoWriterSeconds);
    } else if (count == 0) {
      return without_mark(std::move(bytes), file);
    }
  }
}

void write_file(const fs::path& file, const std::string& bytes) {
  AtomicFile target(file);
  target.write(bytes.data(), bytes.size());
  target.commit();
}

}  // namespace pipewright
