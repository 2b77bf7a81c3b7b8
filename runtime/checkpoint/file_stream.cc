#include "runtime/checkpoint/file_stream.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/regular_file.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kHeadBytes = 512;
enum Part : int64_t { kHead, kPiece, kAnswer };

// Before the bytes of a piece: where in the file they belong.
struct PieceHead {
  int64_t from = 0, size = 0;
};
constexpr auto kPieceHeadBytes = static_cast<int64_t>(sizeof(PieceHead));

at::Tensor bytes_tensor(int64_t bytes) { return at::empty({bytes}, at::TensorOptions(at::kByte)); }

std::string text_of(const TravellingFile& file) {
  return Json{{"minibatch", file.minibatch}, {"file", file.name}, {"bytes", file.bytes}}.dump();
}

// Nothing: no file comes any more.
std::optional<TravellingFile> file_of(const std::string& text, int64_t peer) {
  try {
    const Json json = Json::parse(text);
    if (json.contains("end")) return std::nullopt;
    TravellingFile file{json.at("minibatch").get<int64_t>(), json.at("file").get<std::string>(),
                        json.at("bytes").get<int64_t>()};
    const bool plain = !file.name.empty() && file.name[0] != '.' && file.name.find('/') == std::string::npos;
    if (plain && file.bytes >= 0) return file;
  } catch (const Json::exception&) {
    // as below
  }
  throw PeerError("rank " + std::to_string(peer) + " sent what is no file: " + text,
                  "do all ranks run the same version?");
}

}  // namespace

FileSender::FileSender(Transport& transport, int64_t peer, int64_t first_tag)
    : transport_(transport),
      peer_(peer),
      first_tag_(first_tag),
      buffer_(bytes_tensor(kPieceHeadBytes + kFilePieceBytes)),
      head_(bytes_tensor(kHeadBytes)),
      answer_(bytes_tensor(1)) {}

bool FileSender::send(int64_t minibatch, const fs::path& path) {
  const RegularFile bytes(path);
  const TravellingFile file{minibatch, path.filename().string(), bytes.bytes()};
  send_head(text_of(file));
  bool written = true;
  for (PieceHead piece; piece.from < file.bytes; piece.from += piece.size) {
    piece.size = std::min(kFilePieceBytes, file.bytes - piece.from);
    auto* begin = static_cast<char*>(buffer_.data_ptr());
    std::memcpy(begin, &piece, sizeof piece);
    bytes.read(piece.from, begin + sizeof piece, piece.size);
    transport_.send(buffer_.narrow(0, 0, kPieceHeadBytes + piece.size), peer_, first_tag_ + kPiece)->wait();
    written = await_answer();
  }
  return file.bytes > 0 ? written : await_answer();
}

void FileSender::end() {
  send_head(R"({"end":true})");
  await_answer();
}

void FileSender::send_head(const std::string& text) {
  PW_CHECK_LT(text.size(), static_cast<size_t>(kHeadBytes));
  std::memset(head_.data_ptr(), 0, kHeadBytes);
  std::memcpy(head_.data_ptr(), text.data(), text.size());
  transport_.send(head_, peer_, first_tag_ + kHead)->wait();
}

bool FileSender::await_answer() {
  transport_.receive(answer_, peer_, first_tag_ + kAnswer)->wait();
  return *static_cast<const uint8_t*>(answer_.data_ptr()) != 0;
}

FileReceiver::FileReceiver(Transport& transport, int64_t peer, int64_t first_tag)
    : transport_(transport),
      peer_(peer),
      first_tag_(first_tag),
      buffer_(bytes_tensor(kPieceHeadBytes + kFilePieceBytes)),
      head_(bytes_tensor(kHeadBytes)),
      answer_(bytes_tensor(1)) {}

void FileReceiver::receive(const Place& place, const Whole& whole, const NotWritten& not_written) {
  while (true) {
    transport_.receive(head_, peer_, first_tag_ + kHead)->wait();
    const auto* text = static_cast<const char*>(head_.data_ptr());
    const auto coming = file_of({text, strnlen(text, kHeadBytes)}, peer_);
    if (!coming) return answer(true);
    answer(receive_file(*coming, place, whole, not_written));
  }
}

// All of its pieces come, whatever becomes of them.
bool FileReceiver::receive_file(const TravellingFile& coming, const Place& place, const Whole& whole,
                                const NotWritten& not_written) {
  fs::path path;
  std::optional<AtomicFile> file;
  bool written = true;
  const auto attempt = [&](const auto& step) {
    if (!written) return;
    try {
      step();
    } catch (const RunError& error) {
      written = false;
      file.reset();
      not_written(error);
    }
  };
  attempt([&] {
    path = place(coming);
    file.emplace(path, /*instead=*/path);
  });
  for (int64_t come = 0, size = 0; come < coming.bytes; come += size) {
    if (come > 0) answer(written);
    size = receive_piece(coming, come);
    attempt([&] {
      file->write(static_cast<const char*>(buffer_.data_ptr()) + sizeof(PieceHead),
                  static_cast<size_t>(size));
    });
  }
  attempt([&] {
    file->commit();
    whole(coming, path);
  });
  return written;
}

// Into buffer_, behind the head: returns how many bytes of the file, from byte `from` on.
int64_t FileReceiver::receive_piece(const TravellingFile& coming, int64_t from) {
  const int64_t size = std::min(kFilePieceBytes, coming.bytes - from);
  transport_.receive(buffer_.narrow(0, 0, kPieceHeadBytes + size), peer_, first_tag_ + kPiece)->wait();
  PieceHead piece;
  std::memcpy(&piece, buffer_.data_ptr(), sizeof piece);
  if (piece.from == from && piece.size == size) return size;
  throw PeerError("rank " + std::to_string(peer_) + " sent " + std::to_string(piece.size) +
                  " bytes from byte " + std::to_string(piece.from) + " of " + coming.name +
                  " on: a piece before them is missing");
}

void FileReceiver::answer(bool written) {
  answer_.fill_(written ? 1 : 0);
  transport_.send(answer_, peer_, first_tag_ + kAnswer)->wait();
}

}  // namespace pipewright
