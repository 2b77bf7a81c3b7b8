// Files from rank to rank, piece by piece and one piece under way at a time: whatever else travels between
// the two, an activation, waits for one piece at most.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "graph/error.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// A file on its way.
struct TravellingFile {
  int64_t minibatch = 0;  ///< of the state to which it belongs
  std::string name;       ///< plain: no folder in it
  int64_t bytes = 0;
};

constexpr int64_t kFilePieceBytes = 256 << 10;
/// Tags of a stream, from its first on: which file comes, its pieces, the answers to them.
constexpr int64_t kFileStreamTags = 3;

/// The sending end. One thread at a time; borrows the transport.
class FileSender {
 public:
  FileSender(Transport& transport, int64_t peer, int64_t first_tag);
  /// Returns when the peer has said that it has all of it; false: that it could not write it. `file.bytes`
  /// are read of it, as they are now. PeerError when the connection breaks or the transport is aborted;
  /// InputError if the file cannot be read, after which the stream is of no use.
  bool send(int64_t minibatch, const std::filesystem::path& file);
  /// Nothing comes any more. Returns when the peer has heard of it.
  void end();

 private:
  void send_head(const std::string& text);
  bool await_answer();

  Transport& transport_;
  const int64_t peer_, first_tag_;
  const at::Tensor buffer_, head_, answer_;
};

/// The receiving end. One thread at a time; borrows the transport.
class FileReceiver {
 public:
  /// Where a file is to be written; its folder is there. Over one of the name that is there, whose memory is
  /// used again.
  using Place = std::function<std::filesystem::path(const TravellingFile&)>;
  /// It is there whole. The sender hears of it behind this call.
  using Whole = std::function<void(const TravellingFile&, const std::filesystem::path&)>;
  /// It cannot be written, or `place` or `whole` say so. If this returns the next file comes, and the sender
  /// hears of it.
  using NotWritten = std::function<void(const RunError&)>;

  FileReceiver(Transport& transport, int64_t peer, int64_t first_tag);
  /// Until the sender has ended. PeerError when the connection breaks, the transport is aborted, or a piece
  /// is missing; what `place`, `whole` and `not_written` throw. Of a file that is not whole then nothing is
  /// left.
  void receive(const Place& place, const Whole& whole, const NotWritten& not_written);

 private:
  bool receive_file(const TravellingFile& coming, const Place& place, const Whole& whole,
                    const NotWritten& not_written);
  int64_t receive_piece(const TravellingFile& coming, int64_t from);
  void answer(bool written);

  Transport& transport_;
  const int64_t peer_, first_tag_;
  const at::Tensor buffer_, head_, answer_;
};

}  // namespace pipewright
