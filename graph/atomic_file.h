// A file that appears whole or not at all, written piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace pipewright {

/// Written beside its place; commit() makes it durable and renames it: a reader sees the old file or the new
/// one, never half of one, and after a power cut too. Without commit() nothing is left. Links are followed; a
/// device or pipe (/dev/stdout) is written to as it is. Makes no folders. All errors are RunErrors (no
/// folder, no right, disk full).
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path file);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(const void* bytes, size_t count);
  void commit();

 private:
  [[noreturn]] void fail(int error);

  std::filesystem::path file_;    // as given, for messages
  std::filesystem::path target_;  // what is renamed to
  std::filesystem::path beside_;  // empty: a device, or committed
  int descriptor_ = -1;
};

/// Makes the names in a folder durable (fsync of the folder). RunError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace pipewright
