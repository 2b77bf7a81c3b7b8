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
  /// `instead`, if given: a file of the same file system that nobody needs any more, or `file` itself. It is
  /// overwritten and becomes the new one, which costs a third where files lie in memory: its pages are there.
  /// One that has gone counts as none.
  explicit AtomicFile(std::filesystem::path file, const std::filesystem::path& instead = {});
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(const void* bytes, size_t count);
  void commit();
  /// As commit(), without waiting for the disk: for what is written again soon. After a power cut the file
  /// may be empty.
  void commit_undurably();

 private:
  void put_in_place(bool durable);
  [[noreturn]] void fail(int error);

  std::filesystem::path file_;    // as given, for messages
  std::filesystem::path target_;  // what is renamed to
  std::filesystem::path beside_;  // empty: a device, or committed
  int64_t bytes_ = 0;             // written
  int descriptor_ = -1;
};

/// fsync of a file, or of a folder: makes the names in it durable. Nothing where that is not possible (no
/// such file, no right to read it, no such thing on this file system). RunError when the disk fails.
void sync_to_disk(const std::filesystem::path& file_or_folder);

}  // namespace pipewright
