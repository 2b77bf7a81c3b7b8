#include "models/exported/zip_file.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

// "APPNOTE.TXT - .ZIP File Format Specification": sizes and signatures of the records, all little-endian.
constexpr int64_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46, kLocalBytes = 30;
constexpr int64_t kLongestComment = 0xffff;
constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50, kLocatorSignature = 0x07064b50,
                   kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr uint64_t kNoSize = 0xffffffff;  // the field of ZIP64 has it
constexpr int kZip64Field = 1;
constexpr unsigned kEncrypted = 1, kSizesFollow = 8;

/// A number of the archive; `width`: 2, 4 or 8 bytes.
uint64_t number(const std::string& bytes, size_t at, size_t width) {
  uint64_t value = 0;
  for (size_t i = width; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

}  // namespace

void ZipFile::fail(const std::string& message) const {
  throw InputError(path_.string() + ": cannot be read as a zip archive: " + message,
                   "The file is damaged, was not copied whole, or is something else.");
}

ZipFile::ZipFile(const std::filesystem::path& file) : path_(file), file_(file) {
  read_directory();
  strip_folder();
  std::sort(members_.begin(), members_.end(),
            [](const Member& a, const Member& b) { return a.name < b.name; });
  for (size_t i = 1; i < members_.size(); ++i) {
    if (members_[i].name == members_[i - 1].name)
      fail("the member " + in_quotes(members_[i].name) + " is there twice");
  }
}

const ZipFile::Member* ZipFile::find(const std::string& name) const {
  const auto found = std::lower_bound(members_.begin(), members_.end(), name,
                                      [](const Member& a, const std::string& b) { return a.name < b; });
  return found == members_.end() || found->name != name ? nullptr : &*found;
}

void ZipFile::read(const Member& member, void* into) const {
  constexpr int64_t kPiece = 1 << 20;  // its checksum is made while it is in the cache
  uLong checksum = ::crc32(0, nullptr, 0);
  for (int64_t done = 0; done < member.bytes;) {
    const int64_t count = std::min(kPiece, member.bytes - done);
    auto* at = static_cast<Bytef*>(into) + done;
    file_.read(member.offset + done, at, count);
    checksum = ::crc32(checksum, at, static_cast<uInt>(count));
    done += count;
  }
  if (checksum != member.checksum) {
    throw InputError(path_.string() + ": record " + in_quotes(member.name) +
                         " is damaged: its checksum is not that of the archive's directory",
                     "Copy the file again, or export again.");
  }
}

// The record at the end of the file says where the directory is; one of ZIP64 in front of it, what it has no
// room for.
ZipFile::Directory ZipFile::find_directory() const {
  const int64_t size = file_.bytes();
  if (size < kEndBytes) fail("it has " + std::to_string(size) + " bytes");
  const int64_t tail = std::min(size, kEndBytes + kLongestComment);
  std::string text(static_cast<size_t>(tail), '\0');
  file_.read(size - tail, text.data(), tail);
  int64_t at = tail - kEndBytes;
  const auto ends_here = [&](int64_t i) {
    const auto place = static_cast<size_t>(i);
    return number(text, place, 4) == kEndSignature &&
           static_cast<int64_t>(number(text, place + 20, 2)) == tail - i - kEndBytes;
  };
  while (at >= 0 && !ends_here(at)) --at;
  if (at < 0) fail("it does not end with an archive's directory");

  Directory directory;
  directory.end = static_cast<uint64_t>(size - tail + at);
  const auto end = static_cast<size_t>(at);
  if (number(text, end + 4, 2) != number(text, end + 6, 2)) fail("it is a part of several");
  directory.entries = number(text, end + 10, 2);
  directory.bytes = number(text, end + 12, 4);
  directory.offset = number(text, end + 16, 4);
  if (at >= kLocatorBytes && number(text, end - kLocatorBytes, 4) == kLocatorSignature) {
    const uint64_t where = number(text, end - kLocatorBytes + 8, 8);
    if (directory.end < static_cast<uint64_t>(kLocatorBytes + kEnd64Bytes) ||
        where != directory.end - static_cast<uint64_t>(kLocatorBytes + kEnd64Bytes))
      fail("the record of its directory is not where the file says");
    std::string record(static_cast<size_t>(kEnd64Bytes), '\0');
    file_.read(static_cast<int64_t>(where), record.data(), kEnd64Bytes);
    if (number(record, 0, 4) != kEnd64Signature) fail("the record of its directory is damaged");
    directory = {number(record, 48, 8), number(record, 40, 8), number(record, 32, 8), where};
  }
  if (directory.offset > directory.end || directory.end - directory.offset != directory.bytes)
    fail("its directory is not where the file says");
  if (directory.entries > directory.bytes / static_cast<uint64_t>(kEntryBytes))
    fail("its directory has fewer entries than it says");
  return directory;
}

// The entry at `at` of the directory, which is entry `index` of it.
ZipFile::Entry ZipFile::read_entry(const std::string& entries, size_t at, uint64_t index) const {
  const size_t left = entries.size() - at;
  if (left < static_cast<size_t>(kEntryBytes) || number(entries, at, 4) != kEntrySignature)
    fail("entry " + std::to_string(index) + " of its directory is damaged");
  const size_t name_bytes = number(entries, at + 28, 2), extra_bytes = number(entries, at + 30, 2);
  Entry entry;
  entry.all_bytes = kEntryBytes + name_bytes + extra_bytes + number(entries, at + 32, 2);
  if (entry.all_bytes > left) fail("entry " + std::to_string(index) + " of its directory is damaged");
  entry.name = entries.substr(at + kEntryBytes, name_bytes);
  entry.checksum = static_cast<uint32_t>(number(entries, at + 16, 4));
  entry.stored = number(entries, at + 20, 4);
  entry.bytes = number(entries, at + 24, 4);
  entry.offset = number(entries, at + 42, 4);
  const size_t extra_end = at + kEntryBytes + name_bytes + extra_bytes;
  for (size_t field = at + kEntryBytes + name_bytes; field + 4 <= extra_end;) {
    const uint64_t kind = number(entries, field, 2);
    size_t value = field + 4;
    field = value + number(entries, field + 2, 2);
    if (field > extra_end) fail("the entry of " + in_quotes(entry.name) + " is damaged");
    for (uint64_t* wide : {&entry.bytes, &entry.stored, &entry.offset}) {
      if (kind != kZip64Field || *wide != kNoSize) continue;
      if (value + 8 > field) fail("the entry of " + in_quotes(entry.name) + " is damaged");
      *wide = number(entries, value, 8);
      value += 8;
    }
  }
  if ((number(entries, at + 8, 2) & kEncrypted) != 0) fail(in_quotes(entry.name) + " is encrypted");
  if (number(entries, at + 10, 2) != 0 || entry.stored != entry.bytes)
    fail(in_quotes(entry.name) + " is compressed; expected members that are stored as they are");
  return entry;
}

void ZipFile::read_directory() {
  const Directory directory = find_directory();
  std::string entries(directory.bytes, '\0');
  file_.read(static_cast<int64_t>(directory.offset), entries.data(), static_cast<int64_t>(directory.bytes));
  std::vector<std::pair<int64_t, int64_t>> spans;  // of each member, with its header
  size_t next = 0;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    const Entry entry = read_entry(entries, next, i);
    if (entry.offset > directory.offset || entry.bytes > directory.offset)
      fail(in_quotes(entry.name) + " lies beyond the archive's members");
    Member member;
    member.name = entry.name;
    member.checksum = entry.checksum;
    member.bytes = static_cast<int64_t>(entry.bytes);
    next += entry.all_bytes;
    const auto offset = static_cast<int64_t>(entry.offset);
    read_local_header(member, offset, static_cast<int64_t>(directory.offset));
    spans.emplace_back(offset, member.offset + member.bytes);
    if (!member.name.ends_with('/')) members_.push_back(std::move(member));  // else a folder
  }
  if (next != entries.size()) fail("its directory has more entries than it says");
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first < spans[i - 1].second)
      fail("two of its members share bytes, at " + std::to_string(spans[i].first));
  }
}

// The header in front of the member's bytes: where these begin. It has to say what the directory says.
void ZipFile::read_local_header(Member& member, int64_t at, int64_t directory) const {
  const std::string name = in_quotes(member.name);
  if (directory - at < kLocalBytes) fail(name + " lies beyond the archive's members");
  std::string header(static_cast<size_t>(kLocalBytes), '\0');
  file_.read(at, header.data(), kLocalBytes);
  if (number(header, 0, 4) != kLocalSignature) fail(name + " is not where the directory says");
  const auto name_bytes = static_cast<int64_t>(number(header, 26, 2));
  member.offset = at + kLocalBytes + name_bytes + static_cast<int64_t>(number(header, 28, 2));
  if (member.offset > directory || member.bytes > directory - member.offset)
    fail(name + " lies beyond the archive's members");
  std::string own(static_cast<size_t>(name_bytes), '\0');
  file_.read(at + kLocalBytes, own.data(), name_bytes);
  if (own != member.name) fail(name + " is called " + in_quotes(own) + " in its own header");
  if (number(header, 8, 2) != 0) fail(name + " is compressed; expected members that are stored as they are");
  if ((number(header, 6, 2) & kSizesFollow) == 0 && number(header, 14, 4) != member.checksum)
    fail(name + " has another checksum in its own header");
}

// All members of a file of PyTorch's are in one folder, whose name means nothing.
void ZipFile::strip_folder() {
  if (members_.empty()) fail("it is empty");
  const size_t end = members_[0].name.find('/');
  if (end == std::string::npos) return;
  const std::string folder = members_[0].name.substr(0, end + 1);
  if (!std::all_of(members_.begin(), members_.end(),
                   [&](const Member& member) { return member.name.starts_with(folder); }))
    return;
  for (Member& member : members_) member.name.erase(0, folder.size());
}

}  // namespace pipewright
