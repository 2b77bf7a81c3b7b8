#include "runtime/data/loader.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "graph/error.h"
#include "models/run/scalar_types.h"

namespace pipewright {
namespace {

RequestSource one_after_the_other(std::vector<LoadRequest> requests) {
  return [requests = std::move(requests), next = size_t{0}]() mutable -> std::optional<LoadRequest> {
    if (next == requests.size()) return std::nullopt;
    return std::move(requests[next++]);
  };
}

}  // namespace

struct Loader::Implementation {
  // A minibatch on its way to next(). Lives in `queue` from the moment a worker takes its request.
  struct Slot {
    LoadRequest request;
    std::vector<at::Tensor> tensors;
    std::exception_ptr error;
    bool done = false;
  };

  const Dataset& dataset;
  const std::vector<size_t> fields;
  RequestSource source;
  const size_t ahead;
  const bool pinned;

  std::atomic<bool> stopping = false;  // read without the lock between two samples
  std::mutex mutex;
  std::condition_variable room;   // for workers: the queue is shorter than `ahead`, or stopping
  std::condition_variable ready;  // for next(): the first slot is done, or there will be none
  std::deque<Slot> queue;         // in order; a deque does not move its slots when ends grow or shrink
  bool source_ended = false;
  std::vector<std::thread> threads;

  Implementation(const Dataset& dataset, std::vector<size_t> fields, RequestSource source, int64_t ahead,
                 bool pinned)
      : dataset(dataset),
        fields(std::move(fields)),
        source(std::move(source)),
        ahead(static_cast<size_t>(ahead)),
        pinned(pinned) {
    for (const size_t field : this->fields) PW_CHECK_LT(field, dataset.fields().size());
  }

  ~Implementation() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    room.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<at::Tensor> make(const LoadRequest& request) const {
    for (const int64_t index : request.indices) {
      PW_CHECK(0 <= index && index < dataset.size(),
               "sample " << index << " of a data set of " << dataset.size());
    }
    std::vector<at::Tensor> tensors;
    for (const size_t field : fields) {
      const TensorType& type = dataset.fields()[field].sample_type;
      std::vector<int64_t> shape = {static_cast<int64_t>(request.indices.size())};
      shape.insert(shape.end(), type.shape.begin(), type.shape.end());
      tensors.push_back(
          at::empty(shape, at::TensorOptions(scalar_type_of(type.dtype)).pinned_memory(pinned)));
      char* into = static_cast<char*>(tensors.back().mutable_data_ptr());
      for (const int64_t index : request.indices) {
        if (stopping) return {};
        dataset.read(index, field, request.key, into);
        into += type.bytes();
      }
    }
    return tensors;
  }

  // Takes the next request, or notes that there is none. Under the lock. The slot stays where it is until
  // next() pops it.
  Slot* take() {
    Slot slot;
    try {
      std::optional<LoadRequest> request = source();
      if (!request) {
        source_ended = true;
        return nullptr;
      }
      slot.request = std::move(*request);
    } catch (...) {
      source_ended = true;
      slot.error = std::current_exception();
      slot.done = true;
    }
    queue.push_back(std::move(slot));
    return &queue.back();
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      room.wait(lock, [&] { return stopping || source_ended || queue.size() < ahead; });
      if (stopping || source_ended) return;
      Slot* slot = take();
      if (source_ended) {
        room.notify_all();
        ready.notify_all();
        return;
      }
      lock.unlock();
      try {
        slot->tensors = make(slot->request);
      } catch (...) {
        slot->error = std::current_exception();
      }
      lock.lock();
      slot->done = true;
      ready.notify_all();
    }
  }

  std::vector<at::Tensor> next() {
    std::unique_lock lock(mutex);
    if (threads.empty()) {
      if (!source_ended) take();
    } else {
      ready.wait(lock, [&] { return queue.empty() ? source_ended : queue.front().done; });
    }
    PW_CHECK(!queue.empty(), "next() after the last request of a Loader");
    Slot slot = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    room.notify_one();
    if (slot.error) std::rethrow_exception(slot.error);
    return threads.empty() ? make(slot.request) : std::move(slot.tensors);
  }
};

Loader::Loader(const Dataset& dataset, std::vector<size_t> fields, RequestSource requests, int64_t workers,
               int64_t ahead, bool pinned) {
  PW_CHECK_LE(0, workers);
  PW_CHECK_LE(0, ahead);
  implementation_ =
      std::make_unique<Implementation>(dataset, std::move(fields), std::move(requests), ahead, pinned);
  if (ahead == 0) return;
  for (int64_t i = 0; i < std::min(workers, ahead); ++i) {
    implementation_->threads.emplace_back([this_ = implementation_.get()] { this_->work(); });
  }
}

Loader::Loader(const Dataset& dataset, std::vector<size_t> fields, std::vector<LoadRequest> requests,
               int64_t workers, int64_t ahead, bool pinned)
    : Loader(dataset, std::move(fields), one_after_the_other(std::move(requests)), workers, ahead, pinned) {}

Loader::~Loader() = default;

std::vector<at::Tensor> Loader::next() { return implementation_->next(); }

}  // namespace pipewright
