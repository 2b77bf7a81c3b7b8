// Bytes that the processes of one host share, in memory or in a file, under no name.
//
// Made by one process, opened by others through its /proc entry. No file system knows a name for it, so it is
// gone with the last process that has it mapped, however that ends. (Boost.Interprocess's managed segments
// have names that outlive a killed process; of Boost only its offset_ptr is used, in cache_tier.cc.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace pipewright {

/// A mapping of a region, its maker's or another process's. Movable, unmaps at the end.
class SharedRegion {
 public:
  /// All zero; takes memory as it is reserved. RunError if the system gives none.
  static SharedRegion in_memory(int64_t bytes);
  /// A file in `folder`, which is made if need be. RunError if it cannot be written to. Where the file system
  /// has no nameless files, one gets a name for as long as it takes to remove it; what a process that was
  /// killed in between has left there is removed by the next.
  static SharedRegion on_disk(const std::filesystem::path& folder, int64_t bytes);
  /// RunError if it cannot be opened from here.
  static SharedRegion open(const std::string& address);

  SharedRegion() = default;
  SharedRegion(SharedRegion&& other) noexcept { *this = std::move(other); }
  SharedRegion& operator=(SharedRegion&& other) noexcept;
  ~SharedRegion();

  std::byte* data() const { return base_; }
  int64_t bytes() const { return bytes_; }
  /// By which processes of this host and user open it, as long as this one lives.
  std::string address() const;

  /// Takes memory or room on the disk for [begin, end), which may then be written to. "" or why there is
  /// none: then nothing has changed that counts.
  std::string reserve(int64_t begin, int64_t end) const;

 private:
  SharedRegion(int descriptor, int64_t bytes) : descriptor_(descriptor), bytes_(bytes) {}
  /// The reason, or "".
  std::string map();

  int descriptor_ = -1;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace pipewright
