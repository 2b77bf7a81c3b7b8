// Tensors of a device between processes that share it: a message goes through a block of the device's memory
// that both have opened, copied in by the sender and out by the receiver.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/transport/transport.h"

namespace pipewright {

/// A block of a device's memory that is filled by the process that made it and read by one that has opened
/// it, in turn. Both calls return before the copy is made, and no host waits: it is made in the order of the
/// calling thread's current stream, and not before the other's last copy.
class SharedBlock {
 public:
  virtual ~SharedBlock() = default;
  /// By which another process opens it.
  virtual const std::string& handle() const = 0;
  /// `tensor` is contiguous and not larger than the block. What the block held before must have been given to
  /// read_into().
  virtual void fill(const at::Tensor& tensor) = 0;
  /// `tensor` becomes what the block was last filled with.
  virtual void read_into(const at::Tensor& tensor) = 0;
};

/// The blocks of one device. Any thread may call.
class BlockSharing {
 public:
  virtual ~BlockSharing() = default;
  virtual std::unique_ptr<SharedBlock> make(int64_t bytes) = 0;
  /// A block of another process that has the same device. RunError if this process may not open it.
  virtual std::unique_ptr<SharedBlock> open(const std::string& handle) = 0;
};

/// Messages of tensors of the device that all ranks share. `host` carries a note for each, with its tag, and
/// an answer, with a tag of kAnswerTags and above; others may send with it. A send's wait() returns when the
/// host transport has taken the note, a receive's when the copy is ahead of what the calling thread's current
/// stream is given. A block is used again once its reader has answered, so there are as many as messages were
/// under way at a time; they live as long as the transport.
std::unique_ptr<Transport> make_block_transport(std::shared_ptr<Transport> host,
                                                std::unique_ptr<BlockSharing> sharing);
constexpr int64_t kAnswerTags = int64_t{1} << 28;

}  // namespace pipewright
