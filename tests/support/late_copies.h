// A copy engine without a device: tensors of the host stand for a device's. Its streams are threads that do
// what they are given in order, and late. What has not been copied yet holds other bytes: whoever reads it
// too early is found out.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/transport/copy_engine.h"

namespace pipewright::testing {

/// A thread that works through what it is given.
class LateStream {
 public:
  LateStream() : thread_([this] { run(); }) {}
  ~LateStream() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  /// The number that done() reaches with it.
  int64_t give(std::function<void()> work) {
    int64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      works_.push_back(std::move(work));
      number = ++given_;
    }
    changed_.notify_all();
    return number;
  }
  int64_t given() {
    const std::lock_guard lock(mutex_);
    return given_;
  }
  void wait(int64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= number; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return over_ || !works_.empty(); });
      if (works_.empty()) return;
      const auto work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      for (int i = 0; i < 5; ++i) std::this_thread::yield();  // late
      work();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  int64_t given_ = 0;
  int64_t done_ = 0;
  bool over_ = false;
  std::thread thread_;
};

class LateCopies : public CopyEngine {
 public:
  /// `compute`, if given, is the current stream of every thread, and a wait of the stream is put into it;
  /// otherwise the calling thread is its own stream, so a wait of the stream is a wait of the thread.
  explicit LateCopies(std::shared_ptr<LateStream> compute = nullptr) : compute_(std::move(compute)) {}

  at::Tensor host_buffer(int64_t bytes) override {
    at::Tensor buffer = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
    std::memset(buffer.data_ptr(), 0xa5, static_cast<size_t>(bytes));
    return buffer;
  }

  std::shared_ptr<StreamPoint> here() override {
    if (!compute_) return std::make_shared<Point>(*this, nullptr, 0);
    return std::make_shared<Point>(*this, compute_, compute_->given());
  }

  std::shared_ptr<StreamPoint> download(const at::Tensor& from, const at::Tensor& to,
                                        const std::shared_ptr<StreamPoint>& after) override {
    return copy(down_, from, to, after);
  }

  std::shared_ptr<StreamPoint> upload(const at::Tensor& from, const at::Tensor& to,
                                      const std::shared_ptr<StreamPoint>& after) override {
    return copy(up_, from, to, after);
  }

  /// The threads that have waited on the host.
  std::set<std::thread::id> host_waiters() {
    const std::lock_guard lock(mutex_);
    return host_waiters_;
  }

 private:
  struct Point : StreamPoint {
    Point(LateCopies& engine, std::shared_ptr<LateStream> stream, int64_t number)
        : engine(engine), stream(std::move(stream)), number(number) {}
    void wait_on_host() override {
      {
        const std::lock_guard lock(engine.mutex_);
        engine.host_waiters_.insert(std::this_thread::get_id());
      }
      if (stream) stream->wait(number);
    }
    void wait_on_stream() override {
      if (!stream) return;
      if (!engine.compute_) return stream->wait(number);
      engine.compute_->give([stream = stream, number = number] { stream->wait(number); });
    }
    LateCopies& engine;
    const std::shared_ptr<LateStream> stream;
    const int64_t number;
  };

  std::shared_ptr<StreamPoint> copy(const std::shared_ptr<LateStream>& stream, const at::Tensor& from,
                                    const at::Tensor& to, const std::shared_ptr<StreamPoint>& after) {
    const auto ready = std::static_pointer_cast<Point>(after);
    const int64_t number = stream->give([from, to, ready] {
      if (ready->stream) ready->stream->wait(ready->number);
      std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
    });
    return std::make_shared<Point>(*this, stream, number);
  }

  const std::shared_ptr<LateStream> compute_;
  const std::shared_ptr<LateStream> down_ = std::make_shared<LateStream>();
  const std::shared_ptr<LateStream> up_ = std::make_shared<LateStream>();
  std::mutex mutex_;
  std::set<std::thread::id> host_waiters_;
};

}  // namespace pipewright::testing
