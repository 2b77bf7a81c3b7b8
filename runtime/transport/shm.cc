#include "runtime/transport/shm.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/transport/shm_ring.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// How often a rank that sleeps looks whether its peer still lives.
constexpr auto kLook = 100ms;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

struct Link {
  ProcessName process;
  ShmSegment segment;  // the peer's: its bell, and the ring from here to it
  std::unique_ptr<RingWriter> writer;
  std::unique_ptr<RingReader> reader;
  std::deque<std::shared_ptr<Outgoing>> pending;  // under the transport's mutex_
};

class ShmTransport : public Transport {
 public:
  ShmTransport(int64_t rank, int64_t size, ShmSegment own, std::vector<std::unique_ptr<Link>> links,
               std::chrono::microseconds spin)
      : rank_(rank),
        size_(size),
        own_(std::move(own)),
        links_(std::move(links)),
        most_spin_(spin),
        spin_(spin) {
    for (int64_t peer = 0; peer < size; ++peer) {
      Link* link = links_[static_cast<size_t>(peer)].get();
      if (!link) continue;
      link->writer = std::make_unique<RingWriter>(link->segment, rank);
      link->reader = std::make_unique<RingReader>(own_, peer, link->segment.bell());
    }
  }

  ~ShmTransport() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    pump_has_work_.notify_all();
    own_.closed() = 1;
    own_.bell().ring();
    if (pump_.joinable()) pump_.join();
    for (const auto& link : links_) {
      if (link) link->segment.bell().ring();
    }
  }

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return size_; }

  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override;
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override;
  int64_t buffered_bytes(int64_t) const override { return own_.ring_bytes() / 2; }
  void abort(const std::string& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_.empty()) aborted_ = why.empty() ? "aborted" : why;
    }
    has_aborted_ = true;
    own_.bell().ring();
  }

  /// Takes messages in and sleeps until `done()`, which is asked under read_mutex_; PeerError if it never
  /// will be.
  template <typename Done>
  void wait_until(Done done, int64_t peer, const char* verb);

 private:
  Link& link(int64_t peer) {
    PW_CHECK(0 <= peer && peer < size_ && links_[static_cast<size_t>(peer)],
             "rank " << rank_ << " shares no memory with rank " << peer);
    return *links_[static_cast<size_t>(peer)];
  }
  bool drain_all() {
    bool any = false;
    for (const auto& link : links_) {
      if (link && link->reader->drain()) any = true;
    }
    return any;
  }
  // Counts the threads that wait.
  struct Waiting {
    explicit Waiting(std::atomic<int>& count) : count(count) { ++count; }
    ~Waiting() { --count; }
    std::atomic<int>& count;
  };
  bool spin_while(uint32_t seen);
  void pump();

  const int64_t rank_;
  const int64_t size_;
  ShmSegment own_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; null: none
  const std::chrono::microseconds most_spin_;
  std::atomic<std::chrono::microseconds> spin_;
  std::mutex read_mutex_;         // the readers, and what they take in
  std::atomic<int> waiting_ = 0;  // threads in wait_until()

  std::atomic<bool> has_aborted_ = false;
  std::mutex mutex_;
  std::string aborted_;
  bool stop_ = false;
  std::condition_variable pump_has_work_;
  std::thread pump_;  // pushes what did not fit into a ring; started when something first does not
};

class ShmSend : public Request {
 public:
  ShmSend(ShmTransport& transport, std::shared_ptr<Outgoing> message, int64_t peer)
      : transport_(transport), message_(std::move(message)), peer_(peer) {}
  void wait() override {
    transport_.wait_until([this] { return message_->done.load(); }, peer_, "send to");
  }

 private:
  ShmTransport& transport_;
  std::shared_ptr<Outgoing> message_;
  int64_t peer_;
};

class ShmReceive : public Request {
 public:
  ShmReceive(ShmTransport& transport, std::shared_ptr<Incoming> message, at::Tensor into, int64_t peer)
      : transport_(transport), message_(std::move(message)), into_(std::move(into)), peer_(peer) {}
  void wait() override {
    transport_.wait_until([this] { return message_->complete; }, peer_, "receive from");
    if (message_->buffer && message_->bytes > 0) {
      std::memcpy(into_.data_ptr(), message_->buffer.get(), message_->bytes);
    }
  }

 private:
  ShmTransport& transport_;
  std::shared_ptr<Incoming> message_;
  at::Tensor into_;
  int64_t peer_;
};

std::unique_ptr<Request> ShmTransport::send(at::Tensor tensor, int64_t peer, int64_t tag) {
  PW_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(), "messages are contiguous CPU tensors");
  auto message = std::make_shared<Outgoing>();
  message->tensor = std::move(tensor);
  message->tag = tag;
  Link& to = link(peer);
  {
    const std::lock_guard lock(mutex_);
    if (to.pending.empty() && to.writer->push(*message)) {
      message->done = true;
      message->tensor.reset();
    } else {
      to.pending.push_back(message);
      if (!pump_.joinable()) pump_ = std::thread([this] { pump(); });
    }
  }
  if (!message->done) pump_has_work_.notify_one();
  return std::make_unique<ShmSend>(*this, std::move(message), peer);
}

std::unique_ptr<Request> ShmTransport::receive(at::Tensor tensor, int64_t peer, int64_t tag) {
  PW_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(), "messages are contiguous CPU tensors");
  Link& from = link(peer);
  const std::lock_guard lock(read_mutex_);
  auto message = from.reader->post(tensor, tag);
  return std::make_unique<ShmReceive>(*this, std::move(message), std::move(tensor), peer);
}

// Waits between ranks that work at the same pace are short: sleeping and being woken costs more. So the time
// one looks before sleeping follows what has paid off lately.
bool ShmTransport::spin_while(uint32_t seen) {
  const std::chrono::microseconds spin = spin_;
  if (spin.count() == 0) return false;
  const auto end = Clock::now() + spin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (own_.bell().rings.load(std::memory_order_relaxed) != seen) return true;
      relax();
    }
  } while (Clock::now() < end);
  return false;
}

template <typename Done>
void ShmTransport::wait_until(Done done, int64_t peer, const char* verb) {
  Link& from = link(peer);
  const Waiting waiting(waiting_);
  auto next_look = Clock::now() + kLook;
  const auto lost = [&](const std::string& why) {
    return PeerError("rank " + std::to_string(rank_) + ": " + verb + " rank " + std::to_string(peer) + ": " +
                     why);
  };
  while (true) {
    const uint32_t seen = own_.bell().rings;
    if (has_aborted_) {
      const std::lock_guard lock(mutex_);
      throw lost(aborted_);
    }
    // Whether it has gone is asked before looking for its last messages.
    const bool look = Clock::now() > next_look;
    const bool left = from.segment.closed().load() != 0;
    const bool gone = left || (look && state_of(from.process) == ProcessState::kGone);
    bool any = false;
    {
      const std::lock_guard lock(read_mutex_);
      any = drain_all();
      // What another thread waits for may be among it.
      if (any && waiting_ > 1) own_.bell().ring();
      if (done()) return;
    }
    if (gone && !any) {
      throw lost(left ? "connection lost: it has ended"
                      : "connection lost: its process " + std::to_string(from.process.pid) + " has died");
    }
    if (look) next_look = Clock::now() + kLook;
    if (any || gone) continue;
    if (spin_while(seen)) {
      const std::chrono::microseconds spin = spin_;
      spin_ = std::min(most_spin_, spin + spin / 4 + 1us);
      continue;
    }
    const auto asleep = Clock::now();
    own_.bell().sleep(seen, kLook);
    const bool was_short = Clock::now() - asleep < most_spin_;
    spin_ = was_short ? most_spin_ : std::max(spin_.load() / 2, std::min(most_spin_, 2us));
  }
}

void ShmTransport::pump() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const uint32_t seen = own_.bell().rings;
    bool waiting = false;
    bool any_done = false;
    for (const auto& link : links_) {
      if (!link) continue;
      while (!link->pending.empty() && link->writer->push(*link->pending.front())) {
        link->pending.front()->done = true;
        link->pending.pop_front();
        any_done = true;
      }
      waiting = waiting || !link->pending.empty();
    }
    if (any_done) own_.bell().ring();  // this rank may wait for it
    if (!waiting) {
      pump_has_work_.wait(lock);
      continue;
    }
    lock.unlock();
    if (!any_done) own_.bell().sleep(seen, kLook);
    lock.lock();
  }
}

}  // namespace

std::unique_ptr<Transport> make_shm_transport(Store& store, const std::string& name, int64_t rank,
                                              int64_t world_size, const std::vector<int64_t>& peers,
                                              std::chrono::milliseconds timeout, const ShmSettings& settings,
                                              std::vector<bool>* reachable) {
  const auto key = [&](const char* what, int64_t r) { return name + "/" + what + "/" + std::to_string(r); };
  ShmSegment own = ShmSegment::create(world_size, settings.ring_bytes);
  store.set(key("segment", rank), own.address().to_text());
  store.set(key("process", rank), this_process().to_text());

  std::vector<std::unique_ptr<Link>> links(static_cast<size_t>(world_size));
  Json opened = Json::array();
  for (const int64_t peer : peers) {
    if (peer == rank) continue;
    auto link = std::make_unique<Link>();
    const auto address = SegmentAddress::from_text(store.get(key("segment", peer), timeout, settings.check));
    link->process = ProcessName::from_text(store.get(key("process", peer), timeout, settings.check));
    try {
      link->segment = ShmSegment::open(address, world_size, settings.ring_bytes);
    } catch (const PeerError& error) {
      if (!reachable) {
        throw PeerError("rank " + std::to_string(rank) + ": transport 'shm' to rank " + std::to_string(peer) +
                            " on " + link->process.host + ": " + error.what(),
                        error.remedy());
      }
      continue;
    }
    links[static_cast<size_t>(peer)] = std::move(link);
    opened.push_back(peer);
  }

  // A link needs both sides; and an owner must not leave before its peers have opened its memory.
  store.set(key("opened", rank), opened.dump());
  if (reachable) reachable->assign(static_cast<size_t>(world_size), false);
  for (const int64_t peer : peers) {
    if (peer == rank) continue;
    const Json theirs = parse_json(store.get(key("opened", peer), timeout, settings.check), "opened");
    auto& link = links[static_cast<size_t>(peer)];
    if (std::find(theirs.begin(), theirs.end(), rank) == theirs.end()) link.reset();
    if (reachable && link) (*reachable)[static_cast<size_t>(peer)] = true;
  }
  return std::make_unique<ShmTransport>(rank, world_size, std::move(own), std::move(links), settings.spin);
}

}  // namespace pipewright
