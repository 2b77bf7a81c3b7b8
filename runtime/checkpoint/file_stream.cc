#include "runtime/checkpoint/file_stream.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/regular_file.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kHeadBytes = 512;
enum Part : int64_t { kHead, kPiece, kAnswer };

at::Tensor bytes_tensor(int64_t bytes) { return at::empty({bytes}, at::TensorOptions(at::kByte)); }

// What a piece says of itself: `size` bytes, from byte `from` of the file on.
struct Head {
  bool is_end = false;
  TravellingFile file;
  int64_t from = 0, size = 0;

  std::string to_text() const {
    Json json;
    if (is_end) {
      json["end"] = true;
      return json.dump();
    }
    json["minibatch"] = file.minibatch;
    json["file"] = file.name;
    json["bytes"] = file.bytes;
    json["from"] = from;
    json["size"] = size;
    return json.dump();
  }

  static Head from_text(const std::string& text, int64_t peer) {
    Head head;
    try {
      const Json json = Json::parse(text);
      if (json.contains("end")) {
        head.is_end = true;
        return head;
      }
      head.file = {json.at("minibatch").get<int64_t>(), json.at("file").get<std::string>(),
                   json.at("bytes").get<int64_t>()};
      head.from = json.at("from").get<int64_t>();
      head.size = json.at("size").get<int64_t>();
    } catch (const Json::exception&) {
      throw PeerError("rank " + std::to_string(peer) + " sent what is no piece of a file: " + text,
                      "do all ranks run the same version?");
    }
    const std::string& name = head.file.name;
    const bool plain = !name.empty() && name[0] != '.' && name.find('/') == std::string::npos;
    if (!plain || head.size < 0 || head.size > kFilePieceBytes || head.from < 0 ||
        head.from + head.size > head.file.bytes)
      throw PeerError("rank " + std::to_string(peer) + " sent what is no piece of a file: " + text);
    return head;
  }
};

// A file that grows by pieces, open until the next one begins.
class GrowingFile {
 public:
  GrowingFile() = default;
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;
  ~GrowingFile() { close(); }

  void open(const fs::path& file) {
    close();
    file_ = file;
    bytes_ = 0;
    descriptor_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail();
  }
  void add(const void* bytes, int64_t count) {
    const auto* next = static_cast<const char*>(bytes);
    for (int64_t left = count; left > 0;) {
      const ssize_t wrote = ::write(descriptor_, next, static_cast<size_t>(left));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) fail();
      next += wrote;
      left -= wrote;
    }
    bytes_ += count;
  }
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  const fs::path& path() const { return file_; }
  int64_t bytes() const { return bytes_; }

 private:
  [[noreturn]] void fail() const {
    throw RunError(file_.string() + ": cannot be written: " + std::strerror(errno),
                   "A copy of another rank's state is kept there.");
  }

  fs::path file_;
  int64_t bytes_ = 0;
  int descriptor_ = -1;
};

}  // namespace

FileSender::FileSender(Transport& transport, int64_t peer, int64_t first_tag)
    : transport_(transport),
      peer_(peer),
      first_tag_(first_tag),
      buffer_(bytes_tensor(kFilePieceBytes)),
      head_(bytes_tensor(kHeadBytes)),
      answer_(bytes_tensor(1)) {}

void FileSender::send(int64_t minibatch, const fs::path& path) {
  const RegularFile bytes(path);
  const TravellingFile file{minibatch, path.filename().string(), bytes.bytes()};
  int64_t from = 0;
  do {  // an empty file has one piece too
    const int64_t size = std::min(kFilePieceBytes, file.bytes - from);
    const at::Tensor piece = buffer_.narrow(0, 0, size);
    bytes.read(from, piece.data_ptr(), size);
    send_piece(file, from, piece);
    from += size;
  } while (from < file.bytes);
}

void FileSender::send_piece(const TravellingFile& file, int64_t from, const at::Tensor& piece) {
  send_head(Head{false, file, from, piece.numel()}.to_text());
  if (piece.numel() > 0) transport_.send(piece, peer_, first_tag_ + kPiece)->wait();
  await_answer();
}

void FileSender::end() {
  send_head(Head{true, {}, 0, 0}.to_text());
  await_answer();
}

void FileSender::send_head(const std::string& text) {
  PW_CHECK_LT(text.size(), static_cast<size_t>(kHeadBytes));
  std::memset(head_.data_ptr(), 0, kHeadBytes);
  std::memcpy(head_.data_ptr(), text.data(), text.size());
  transport_.send(head_, peer_, first_tag_ + kHead)->wait();
}

void FileSender::await_answer() { transport_.receive(answer_, peer_, first_tag_ + kAnswer)->wait(); }

FileReceiver::FileReceiver(Transport& transport, int64_t peer, int64_t first_tag)
    : transport_(transport),
      peer_(peer),
      first_tag_(first_tag),
      buffer_(bytes_tensor(kFilePieceBytes)),
      head_(bytes_tensor(kHeadBytes)),
      answer_(bytes_tensor(1)) {}

void FileReceiver::receive(const Place& place, const Whole& whole) {
  answer_.zero_();
  const auto answer = [this] { transport_.send(answer_, peer_, first_tag_ + kAnswer)->wait(); };
  GrowingFile file;
  while (true) {
    transport_.receive(head_, peer_, first_tag_ + kHead)->wait();
    const auto* text = static_cast<const char*>(head_.data_ptr());
    const Head head = Head::from_text({text, strnlen(text, kHeadBytes)}, peer_);
    if (head.is_end) return answer();
    const at::Tensor piece = buffer_.narrow(0, 0, head.size);
    if (head.size > 0) transport_.receive(piece, peer_, first_tag_ + kPiece)->wait();
    const fs::path path = place(head.file);
    if (head.from == 0) file.open(path);
    if (path != file.path() || head.from != file.bytes()) {
      throw PeerError("rank " + std::to_string(peer_) + " sent byte " + std::to_string(head.from) + " of " +
                      path.filename().string() + ": a piece before it is missing");
    }
    file.add(piece.data_ptr(), head.size);
    if (file.bytes() == head.file.bytes) {
      file.close();
      whole(head.file, path);
    }
    answer();
  }
}

}  // namespace pipewright
