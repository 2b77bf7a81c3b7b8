#include "runtime/cache/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/units.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "pipewright-cache-";  // of files that are about to lose their name

std::string reason() { return std::strerror(errno); }

// Whoever still needs one of these has it open.
void sweep(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().rfind(kPrefix, 0) == 0) fs::remove(entry.path(), ignored);
  }
}

int nameless_file(const fs::path& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  std::string name = (folder / (std::string(kPrefix) + "XXXXXX")).string();
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

struct Identity {
  uint64_t device = 0, file = 0;
  int64_t bytes = 0;
};
Identity identity_of(int descriptor) {
  struct stat status {};
  PW_CHECK_EQ(fstat(descriptor, &status), 0);
  return {static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino),
          static_cast<int64_t>(status.st_size)};
}

}  // namespace

std::string SharedRegion::map() {
  if (ftruncate(descriptor_, static_cast<off_t>(bytes_)) != 0) return "ftruncate: " + reason();
  void* base = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (base == MAP_FAILED) return "mmap: " + reason();
  base_ = static_cast<std::byte*>(base);
  return "";
}

SharedRegion SharedRegion::in_memory(int64_t bytes) {
  const auto fail = [&](const std::string& why) {
    return RunError("cache: " + format_bytes(static_cast<double>(bytes)) + " of memory: " + why,
                    "give a smaller budget, e.g. --cache memory:memory=256MiB");
  };
  SharedRegion region(memfd_create("pipewright-cache", MFD_CLOEXEC), bytes);
  if (region.descriptor_ < 0) throw fail("memfd_create: " + reason());
  const std::string problem = region.map();
  if (!problem.empty()) throw fail(problem);
  return region;
}

SharedRegion SharedRegion::on_disk(const fs::path& folder, int64_t bytes) {
  const auto fail = [&](const std::string& why) {
    return RunError("cache: a file in folder '" + folder.string() + "': " + why,
                    "give a folder that can be written to, e.g. --cache disk:root=DIR");
  };
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw fail(error.message());
  sweep(folder);
  SharedRegion region(nameless_file(folder), bytes);
  if (region.descriptor_ < 0) throw fail(reason());
  const std::string problem = region.map();
  if (!problem.empty()) throw fail(problem);
  return region;
}

std::string SharedRegion::address() const {
  const Identity identity = identity_of(descriptor_);
  Json json;
  json["pid"] = getpid();
  json["descriptor"] = descriptor_;
  json["device"] = identity.device;
  json["file"] = identity.file;
  json["bytes"] = identity.bytes;
  return json.dump();
}

SharedRegion SharedRegion::open(const std::string& address) {
  const auto fail = [&](const std::string& why) {
    return RunError("cache: what another rank of this host keeps cannot be opened: " + why,
                    "ranks that share a cache run as one user on one host, in one container");
  };
  try {
    const Json json = Json::parse(address);
    const std::string file = "/proc/" + std::to_string(json.at("pid").get<int64_t>()) + "/fd/" +
                             std::to_string(json.at("descriptor").get<int64_t>());
    SharedRegion region(::open(file.c_str(), O_RDWR | O_CLOEXEC), json.at("bytes").get<int64_t>());
    if (region.descriptor_ < 0) throw fail(file + ": " + reason());
    const Identity identity = identity_of(region.descriptor_);
    if (identity.device != json.at("device").get<uint64_t>() ||
        identity.file != json.at("file").get<uint64_t>() || identity.bytes != region.bytes_)
      throw fail(file + " is another one by now");
    const std::string problem = region.map();
    if (!problem.empty()) throw fail(problem);
    return region;
  } catch (const Json::exception&) {
    throw fail("'" + address + "' is no address");
  }
}

SharedRegion& SharedRegion::operator=(SharedRegion&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedRegion::~SharedRegion() {
  if (base_) munmap(base_, static_cast<size_t>(bytes_));
  if (descriptor_ >= 0) close(descriptor_);
}

std::string SharedRegion::reserve(int64_t begin, int64_t end) const {
  // Not merely grown: a page that the file system has no room for when it is written to ends the process.
  const int error = posix_fallocate(descriptor_, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace pipewright
