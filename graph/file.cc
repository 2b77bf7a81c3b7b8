// Files as documents need them: read whole, written whole or not at all.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int close() {  // says what the destructor cannot: a late write error
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd);
  }

 private:
  int fd_;
};

std::string errno_text(int error) { return std::strerror(error); }

std::string nearest_file(const fs::path& file) {
  constexpr size_t kMostFiles = 1000;
  std::vector<std::string> names;
  std::error_code error;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  for (fs::directory_iterator it(folder, error), end; !error && it != end && names.size() < kMostFiles;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return nearest(file.filename().string(), names);
}

[[noreturn]] void fail_write(const fs::path& file, int error) {
  std::string remedy;
  if (error == ENOENT) remedy = "The folder does not exist: mkdir -p " + file.parent_path().string();
  if (error == ENOSPC || error == EDQUOT) remedy = "Make room there, or write to another folder.";
  if (error == EACCES || error == EROFS || error == EPERM) remedy = "Write to a folder that you own.";
  throw RunError(file.string() + ": cannot be written: " + errno_text(error), remedy);
}

// 0 or errno.
int write_all(int fd, const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    done += static_cast<size_t>(count);
  }
  return 0;
}

}  // namespace

std::string read_file(const fs::path& file) {
  if (file.empty()) throw InputError("the name of a file is empty");
  const Descriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.get() < 0) {
    const int error = errno;
    const std::string near = error == ENOENT ? nearest_file(file) : "";
    throw InputError(file.string() + ": cannot be read: " + errno_text(error) +
                     (near.empty() ? "" : "; did you mean '" + (file.parent_path() / near).string() + "'?"));
  }
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) {
    throw InputError(file.string() + ": cannot be read: " + errno_text(errno));
  }
  if (S_ISDIR(status.st_mode)) throw InputError(file.string() + ": is a folder, expected a file");
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
    throw InputError(file.string() + ": is a device, expected a file");
  }
  std::string bytes;
  bytes.reserve(static_cast<size_t>(status.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(descriptor.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw InputError(file.string() + ": cannot be read: " + errno_text(errno));
    if (count == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(count));
  }
}

void write_file(const fs::path& file, const std::string& bytes) {
  struct stat status {};
  const bool exists = ::stat(file.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode))
    throw RunError(file.string() + ": cannot be written: it is a folder");
  if (exists && !S_ISREG(status.st_mode)) {  // a rename would replace the device
    Descriptor device(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
    if (device.get() < 0) fail_write(file, errno);
    if (const int error = write_all(device.get(), bytes); error != 0) fail_write(file, error);
    if (device.close() != 0) fail_write(file, errno);
    return;
  }
  std::error_code ignored;
  const fs::path target = exists ? fs::canonical(file, ignored) : file;
  if (target.empty()) fail_write(file, ENOENT);
  static std::atomic<int> counter{0};
  const std::string suffix = ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  fs::path beside = target;
  beside.replace_filename("." + target.filename().string().substr(0, 200) + suffix);

  Descriptor descriptor(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (descriptor.get() < 0) fail_write(file, errno);
  int error = exists && ::fchmod(descriptor.get(), status.st_mode & 07777) != 0 ? errno : 0;
  if (error == 0) error = write_all(descriptor.get(), bytes);
  if (error == 0 && ::fsync(descriptor.get()) != 0) error = errno;
  if (descriptor.close() != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(beside.c_str());
    fail_write(file, error);
  }
}

}  // namespace pipewright
