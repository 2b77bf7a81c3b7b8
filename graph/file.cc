// Files as documents need them: read whole, written whole or not at all.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "graph/atomic_file.h"
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
  AtomicFile target(file);
  target.write(bytes.data(), bytes.size());
  target.commit();
}

}  // namespace pipewright
