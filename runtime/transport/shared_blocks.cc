#include "runtime/transport/shared_blocks.h"

#include <ATen/ops/empty.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

// A note: how many bytes the message has, how many the handle, and the handle.
constexpr int64_t kNoteBytes = 4096;
struct NoteHead {
  int64_t message_bytes = 0;
  int64_t handle_bytes = 0;
};

at::Tensor bytes_on_host(int64_t bytes) { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte)); }

at::Tensor write_note(int64_t message_bytes, const std::string& handle) {
  const NoteHead head{message_bytes, static_cast<int64_t>(handle.size())};
  PW_CHECK_LE(head.handle_bytes, kNoteBytes - static_cast<int64_t>(sizeof(head)));
  at::Tensor note = bytes_on_host(kNoteBytes).zero_();
  auto* const at = note.data_ptr<uint8_t>();
  std::memcpy(at, &head, sizeof(head));
  std::memcpy(at + sizeof(head), handle.data(), handle.size());
  return note;
}

class BlockTransport : public Transport {
 public:
  BlockTransport(std::shared_ptr<Transport> host, std::unique_ptr<BlockSharing> sharing)
      : host_(std::move(host)), sharing_(std::move(sharing)) {}

  ~BlockTransport() override {
    bool under_way = false;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
      under_way = !under_way_.empty();
    }
    changed_.notify_all();
    if (under_way) host_->abort("this rank stops");
    if (collector_.joinable()) collector_.join();
  }

  int64_t rank() const override { return host_->rank(); }
  int64_t world_size() const override { return host_->world_size(); }

  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override;
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override;

  void abort(const std::string& why) override { host_->abort(why); }  // every wait is one of the host's

  void take(const at::Tensor& note, const at::Tensor& tensor, int64_t peer, int64_t tag);

 private:
  struct Block {
    int64_t bytes = 0;
    std::unique_ptr<SharedBlock> shared;
  };
  // A block that its reader has not answered for.
  struct UnderWay {
    Block block;
    std::unique_ptr<Request> answer;
  };

  Block free_block(int64_t bytes);
  void collect();

  const std::shared_ptr<Transport> host_;
  const std::unique_ptr<BlockSharing> sharing_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::multimap<int64_t, std::unique_ptr<SharedBlock>> free_;                       // by bytes
  std::map<std::pair<int64_t, std::string>, std::unique_ptr<SharedBlock>> opened_;  // by peer, handle
  std::deque<UnderWay> under_way_;
  std::thread collector_;
};

class BlockReceive : public Request {
 public:
  BlockReceive(BlockTransport& transport, at::Tensor note, std::unique_ptr<Request> request,
               at::Tensor tensor, int64_t peer, int64_t tag)
      : transport_(transport),
        note_(std::move(note)),
        request_(std::move(request)),
        tensor_(std::move(tensor)),
        peer_(peer),
        tag_(tag) {}
  void wait() override {
    request_->wait();
    transport_.take(note_, tensor_, peer_, tag_);
  }

 private:
  BlockTransport& transport_;
  at::Tensor note_;
  std::unique_ptr<Request> request_;
  at::Tensor tensor_;
  int64_t peer_;
  int64_t tag_;
};

BlockTransport::Block BlockTransport::free_block(int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = free_.find(bytes);
    if (found != free_.end()) {
      Block block{bytes, std::move(found->second)};
      free_.erase(found);
      return block;
    }
  }
  return {bytes, sharing_->make(bytes)};
}

std::unique_ptr<Request> BlockTransport::send(at::Tensor tensor, int64_t peer, int64_t tag) {
  PW_CHECK(tensor.is_contiguous(), "messages are contiguous");
  PW_CHECK_LT(tag, kAnswerTags);
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  Block block = free_block(bytes);
  block.shared->fill(tensor);
  // Asked for before the note goes: the peer's answer never waits for this rank.
  auto answer = host_->receive(bytes_on_host(1), peer, tag + kAnswerTags);
  auto note = host_->send(write_note(bytes, block.shared->handle()), peer, tag);
  {
    const std::lock_guard lock(mutex_);
    under_way_.push_back({std::move(block), std::move(answer)});
    if (!collector_.joinable()) collector_ = std::thread([this] { collect(); });
  }
  changed_.notify_all();
  return note;
}

// Waits for answers, oldest first, and frees their blocks.
void BlockTransport::collect() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return over_ || !under_way_.empty(); });
    if (over_) return;
    const std::unique_ptr<Request>& answer = under_way_.front().answer;
    lock.unlock();
    try {
      answer->wait();
    } catch (const PeerError&) {
      return;  // whoever waits for the peer is told
    }
    lock.lock();
    Block& block = under_way_.front().block;
    free_.emplace(block.bytes, std::move(block.shared));
    under_way_.pop_front();
  }
}

std::unique_ptr<Request> BlockTransport::receive(at::Tensor tensor, int64_t peer, int64_t tag) {
  PW_CHECK(tensor.is_contiguous(), "messages are contiguous");
  at::Tensor note = bytes_on_host(kNoteBytes);
  auto request = host_->receive(note, peer, tag);
  return std::make_unique<BlockReceive>(*this, std::move(note), std::move(request), std::move(tensor), peer,
                                        tag);
}

void BlockTransport::take(const at::Tensor& note, const at::Tensor& tensor, int64_t peer, int64_t tag) {
  const auto* const at = note.data_ptr<uint8_t>();
  NoteHead head;
  std::memcpy(&head, at, sizeof(head));
  PW_CHECK_EQ(head.message_bytes, static_cast<int64_t>(tensor.nbytes()));
  PW_CHECK_LE(head.handle_bytes, kNoteBytes - static_cast<int64_t>(sizeof(head)));
  const std::string handle(reinterpret_cast<const char*>(at) + sizeof(head),
                           static_cast<size_t>(head.handle_bytes));
  SharedBlock* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& opened = opened_[{peer, handle}];
    if (!opened) opened = sharing_->open(handle);
    block = opened.get();
  }
  block->read_into(tensor);
  host_->send(bytes_on_host(1), peer, tag + kAnswerTags)->wait();
}

}  // namespace

std::unique_ptr<Transport> make_block_transport(std::shared_ptr<Transport> host,
                                                std::unique_ptr<BlockSharing> sharing) {
  return std::make_unique<BlockTransport>(std::move(host), std::move(sharing));
}

}  // namespace pipewright
