// Files that are opened for reading without waiting: opening or reading a pipe that nobody writes to never
// ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace pipewright {

/// A regular file that is open for reading; closed when it goes.
class RegularFile {
 public:
  /// Follows links. InputError that names the file: it cannot be opened (for one that is not there, the
  /// nearest name in its folder is said), or is a folder, a pipe, a socket or a device. Opens none of these.
  explicit RegularFile(const std::filesystem::path& file);
  ~RegularFile();
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&&) = delete;
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int descriptor() const { return descriptor_; }
  int64_t bytes() const { return bytes_; }  ///< its size when it was opened
  /// `count` bytes from `offset` on. InputError: it cannot be read, or ends before. Safe to call from several
  /// threads.
  void read(int64_t offset, void* into, int64_t count) const;

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

/// Whether there is anything of this name; false too for what may not be looked at.
bool file_exists(const std::filesystem::path& file);

/// The file's bytes. InputError as RegularFile.
std::string read_regular_file(const std::filesystem::path& file);

}  // namespace pipewright
