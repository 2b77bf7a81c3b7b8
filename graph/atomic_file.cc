#include "graph/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "graph/error.h"
#include "graph/file_watch.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_write(const fs::path& file, int error) {
  std::string remedy;
  if (error == ENOENT) remedy = "The folder does not exist: mkdir -p " + file.parent_path().string();
  if (error == ENOSPC || error == EDQUOT) remedy = "Make room there, or write to another folder.";
  if (error == EACCES || error == EROFS || error == EPERM) remedy = "Write to a folder that you own.";
  throw RunError(file.string() + ": cannot be written: " + std::strerror(error), remedy);
}

}  // namespace

// The folder's entries are watched; bytes that are on their way to a slow disk may take their time.
AtomicFile::AtomicFile(fs::path file, const fs::path& instead) : file_(std::move(file)) {
  const FileWatch watch(file_);
  struct stat status {};
  const bool exists = ::stat(file_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode))
    throw RunError(file_.string() + ": cannot be written: it is a folder");
  if (exists && !S_ISREG(status.st_mode)) {  // a rename would replace the device
    descriptor_ = ::open(file_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail_write(file_, errno);
    return;
  }
  std::error_code ignored;
  target_ = exists ? fs::canonical(file_, ignored) : file_;
  if (target_.empty()) fail_write(file_, ENOENT);
  // A process that was killed may have left one, in a container with the very number that this one has.
  static std::atomic<int> counter{0};
  fs::path beside = target_;
  do {
    const std::string suffix = ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    beside.replace_filename("." + target_.filename().string().substr(0, 200) + suffix);
    const bool reused = !instead.empty() && ::rename(instead.c_str(), beside.c_str()) == 0;
    const int how = reused ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    descriptor_ = ::open(beside.c_str(), how, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail_write(file_, errno);
  beside_ = std::move(beside);
  if (exists && ::fchmod(descriptor_, status.st_mode & 07777) != 0) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!beside_.empty()) ::unlink(beside_.c_str());
}

// From the constructor too, where no destructor follows.
void AtomicFile::fail(int error) {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (!beside_.empty()) ::unlink(beside_.c_str());
  beside_.clear();
  fail_write(file_, error);
}

void AtomicFile::write(const void* bytes, size_t count) {
  PW_CHECK(descriptor_ >= 0, "written to after its end: " << file_.string());
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::write(descriptor_, from, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    from += written;
    bytes_ += written;
    count -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() { put_in_place(/*durable=*/true); }
void AtomicFile::commit_undurably() { put_in_place(/*durable=*/false); }

void AtomicFile::put_in_place(bool durable) {
  PW_CHECK(descriptor_ >= 0, "committed after its end: " << file_.string());
  const bool device = beside_.empty();
  if (!device && ::ftruncate(descriptor_, bytes_) != 0) fail(errno);
  if (!device && durable && ::fsync(descriptor_) != 0) fail(errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail(errno);  // a late write error
  if (device) return;
  {
    const FileWatch watch(file_);
    if (::rename(beside_.c_str(), target_.c_str()) != 0) fail(errno);
  }
  beside_.clear();
  if (durable) sync_to_disk(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
}

void sync_to_disk(const fs::path& file_or_folder) {
  const int descriptor = ::open(file_or_folder.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return;
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0 && error != EINVAL && error != ENOTSUP && error != EBADF) fail_write(file_or_folder, error);
}

}  // namespace pipewright
