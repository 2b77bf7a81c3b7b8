// Blocks without a device: tensors of the host stand for a device's, ranks are threads of one process. Copies
// are made late, in the order of each rank's stream; a block that is filled before it has been given to its
// reader, or read before it is filled, is found out.
#pragma once

#include <ATen/ops/empty.h>

#include <atomic>
#include <cstring>
#include <map>
#include <stdexcept>

#include "runtime/transport/shared_blocks.h"
#include "tests/support/late_copies.h"

namespace pipewright::testing {

class LateBlocks : public BlockSharing {
 public:
  /// `compute`, if given, is the current stream of the rank's threads; otherwise each thread is its own
  /// stream, so what is put into it is done at once.
  explicit LateBlocks(std::shared_ptr<LateStream> compute = nullptr) : compute_(std::move(compute)) {}

  std::unique_ptr<SharedBlock> make(int64_t bytes) override {
    auto memory = std::make_shared<Memory>();
    memory->bytes = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
    ++made_;
    const std::lock_guard lock(registry_mutex());
    const std::string handle = "block " + std::to_string(registry().size());
    registry()[handle] = memory;
    return std::make_unique<Block>(compute_, std::move(memory), handle);
  }

  std::unique_ptr<SharedBlock> open(const std::string& handle) override {
    ++opened_;
    const std::lock_guard lock(registry_mutex());
    const std::shared_ptr<Memory> memory = registry().at(handle).lock();
    if (!memory) throw std::logic_error("opened after its maker has freed it: " + handle);
    return std::make_unique<Block>(compute_, memory, handle);
  }

  int64_t made() const { return made_; }
  int64_t opened() const { return opened_; }

 private:
  // Counts of fillings and readings given to streams, and done by them.
  struct Memory {
    at::Tensor bytes;
    std::mutex mutex;
    std::condition_variable changed;
    int64_t filled_given = 0;
    int64_t read_given = 0;
    int64_t filled = 0;
    int64_t read = 0;
  };

  class Block : public SharedBlock {
   public:
    Block(std::shared_ptr<LateStream> compute, std::shared_ptr<Memory> memory, std::string handle)
        : compute_(std::move(compute)), memory_(std::move(memory)), handle_(std::move(handle)) {}
    const std::string& handle() const override { return handle_; }
    void fill(const at::Tensor& tensor) override {
      {
        const std::lock_guard lock(memory_->mutex);
        if (memory_->read_given != memory_->filled_given) throw std::logic_error("filled before it was read");
        ++memory_->filled_given;
      }
      give([memory = memory_, tensor] {
        std::unique_lock lock(memory->mutex);
        memory->changed.wait(lock, [&] { return memory->read == memory->filled; });
        std::memcpy(memory->bytes.data_ptr(), tensor.data_ptr(), tensor.nbytes());
        ++memory->filled;
        memory->changed.notify_all();
      });
    }
    void read_into(const at::Tensor& tensor) override {
      {
        const std::lock_guard lock(memory_->mutex);
        if (++memory_->read_given != memory_->filled_given)
          throw std::logic_error("read before it was filled");
      }
      give([memory = memory_, tensor] {
        std::unique_lock lock(memory->mutex);
        memory->changed.wait(lock, [&] { return memory->filled == memory->read + 1; });
        std::memcpy(tensor.data_ptr(), memory->bytes.data_ptr(), tensor.nbytes());
        std::memset(memory->bytes.data_ptr(), 0xa5, memory->bytes.nbytes());
        ++memory->read;
        memory->changed.notify_all();
      });
    }

   private:
    void give(const std::function<void()>& work) {
      if (compute_) {
        compute_->give(work);
      } else {
        work();
      }
    }
    const std::shared_ptr<LateStream> compute_;
    const std::shared_ptr<Memory> memory_;
    const std::string handle_;
  };

  static std::mutex& registry_mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<std::string, std::weak_ptr<Memory>>& registry() {
    static std::map<std::string, std::weak_ptr<Memory>> all;
    return all;
  }

  const std::shared_ptr<LateStream> compute_;
  std::atomic<int64_t> made_ = 0;
  std::atomic<int64_t> opened_ = 0;
};

}  // namespace pipewright::testing
