#include "runtime/commands/event_file.h"

#include <array>
#include <bit>
#include <cstddef>

namespace pipewright {
namespace {

constexpr std::array<uint32_t, 256> crc_table() {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

// A CRC of data that holds CRCs says little: TFRecord stores them turned and shifted.
uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8; }

template <typename Integer>
void put_little_endian(std::string& out, Integer value) {
  for (size_t byte = 0; byte < sizeof value; ++byte) out += static_cast<char>(value >> (8 * byte));
}

// Protobuf. A field's key is its number and how it is coded.
enum class Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint64_t field, Wire wire) {
  put_varint(out, field << 3 | static_cast<uint64_t>(wire));
}

void put_double(std::string& out, uint64_t field, double value) {
  put_key(out, field, Wire::kFixed64);
  put_little_endian(out, std::bit_cast<uint64_t>(value));
}

void put_float(std::string& out, uint64_t field, float value) {
  put_key(out, field, Wire::kFixed32);
  put_little_endian(out, std::bit_cast<uint32_t>(value));
}

void put_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  put_key(out, field, Wire::kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffff;
}

EventFile::EventFile(const std::filesystem::path& folder, double wall_seconds)
    : file_(folder / "events.out.tfevents.pipewright") {
  std::string event;
  put_double(event, 1, wall_seconds);
  put_bytes(event, 3, "brain.Event:2");
  record(event);
}

void EventFile::add(double wall_seconds, int64_t step, std::string_view tag, double value) {
  std::string number, summary, event;
  put_bytes(number, 1, tag);
  put_float(number, 2, static_cast<float>(value));
  put_bytes(summary, 1, number);
  put_double(event, 1, wall_seconds);
  put_key(event, 2, Wire::kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  record(event);
}

void EventFile::record(const std::string& event) {
  std::string length;
  put_little_endian(length, static_cast<uint64_t>(event.size()));
  waiting_ += length;
  put_little_endian(waiting_, masked(crc32c(length)));
  waiting_ += event;
  put_little_endian(waiting_, masked(crc32c(event)));
  constexpr size_t kPiece = 1 << 16;
  if (waiting_.size() > kPiece) flush();
}

void EventFile::flush() {
  file_.write(waiting_.data(), waiting_.size());
  waiting_.clear();
}

void EventFile::commit() {
  flush();
  file_.commit();
}

}  // namespace pipewright
