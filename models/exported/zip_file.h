// Zip archives whose members are stored as they are: what PyTorch writes. Reads strictly: what a damaged or
// made-up archive says twice, or says of bytes that are elsewhere, is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/regular_file.h"

namespace pipewright {

class ZipFile {
 public:
  struct Member {
    std::string name;    ///< without the folder that all members are in
    int64_t offset = 0;  ///< of its bytes, in the file
    int64_t bytes = 0;
    uint32_t checksum = 0;  ///< CRC-32
  };

  /// Reads the directory, with ZIP64's fields. InputError that names the file: no regular file, no zip
  /// archive, one that does not end where the file does, of several parts, encrypted or compressed; two
  /// members of one name or that overlap; a member whose own header says another name or that lies beyond the
  /// directory.
  explicit ZipFile(const std::filesystem::path& file);

  const std::vector<Member>& members() const { return members_; }  ///< by name
  const Member* find(const std::string& name) const;               ///< null if there is none
  /// The member's bytes, member.bytes of them. InputError: they cannot be read, or have another checksum.
  /// Safe to call from several threads.
  void read(const Member& member, void* into) const;

 private:
  struct Directory {
    uint64_t offset = 0, bytes = 0, entries = 0;
    uint64_t end = 0;  // where the record behind it begins
  };
  struct Entry {
    std::string name;
    uint32_t checksum = 0;
    uint64_t stored = 0, bytes = 0;  // stored: in the file
    uint64_t offset = 0;             // of the member's own header
    size_t all_bytes = 0;            // of the entry
  };
  Directory find_directory() const;
  Entry read_entry(const std::string& entries, size_t at, uint64_t index) const;
  void read_directory();
  void read_local_header(Member& member, int64_t at, int64_t directory) const;
  void strip_folder();
  [[noreturn]] void fail(const std::string& message) const;

  std::filesystem::path path_;
  RegularFile file_;
  std::vector<Member> members_;
};

}  // namespace pipewright
