#include "runtime/data/loader.h"

#include <ATen/ops/empty.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "graph/error.h"
#include "models/run/scalar_types.h"
#include "runtime/data/normalised.h"

namespace pipewright {
namespace {

RequestSource one_after_the_other(std::vector<LoadRequest> requests) {
  return [requests = std::move(requests), next = size_t{0}]() mutable -> std::optional<LoadRequest> {
    if (next == requests.size()) return std::nullopt;
    return std::move(requests[next++]);
  };
}

void start_worker(std::vector<std::thread>& threads, const std::function<void()>& work) {
  try {
    threads.emplace_back(work);
  } catch (const std::system_error& error) {
    // A few do what many would.
    if (threads.empty())
      throw RunError(std::string("no thread for loading samples can be started: ") + error.what(),
                     "A limit on threads or memory of this process, likely; --data-workers is how many there "
                     "are to be.");
  }
}

}  // namespace

struct Loader::Implementation {
  // A minibatch on its way to next(). Lives in `queue` from the moment a worker has its request.
  struct Slot {
    LoadRequest request;
    std::vector<at::Tensor> tensors;
    bool open = false;      // the tensors are there: workers take pieces
    size_t taken = 0;       // samples before it are made, or being made
    size_t being_made = 0;  // pieces
    size_t failed = kNone;  // the first sample that could not be read, as far as is known
    std::exception_ptr error;

    static constexpr size_t kNone = std::numeric_limits<size_t>::max();
    bool is_all_taken() const { return open && (taken == request.indices.size() || failed != kNone); }
    bool is_done() const { return is_all_taken() && being_made == 0; }
    // Pieces are taken in order, so all samples before the first one that fails are read.
    void fail(size_t sample, std::exception_ptr why) {
      if (sample >= failed) return;
      failed = sample;
      error = std::move(why);
    }
  };

  struct Field {
    size_t number;
    TensorType type;                            // as it is handed out
    std::optional<NormalisedBytes> normalised;  // what makes that of what is stored, unless they are the same
  };

  const Dataset& dataset;
  std::vector<Field> fields;
  RequestSource source;
  const DataWorkers workers;
  const size_t ahead;
  const bool pinned;

  std::atomic<bool> stopping = false;  // read without the lock between two samples
  std::mutex mutex;
  std::condition_variable work_to_do;  // for workers: a piece, room for a request, or the end
  std::condition_variable ready;       // for next(): the first slot is done, or there will be none
  std::deque<Slot> queue;              // in order; a deque does not move its slots when ends grow or shrink
  bool asking = false;                 // a worker waits for the source
  bool source_ended = false;
  std::vector<std::thread> threads;

  Implementation(const Dataset& dataset, const std::vector<size_t>& numbers, RequestSource source,
                 DataWorkers workers, int64_t ahead, bool pinned, bool stored)
      : dataset(dataset),
        source(std::move(source)),
        workers(std::move(workers)),
        ahead(static_cast<size_t>(ahead)),
        pinned(pinned) {
    for (const size_t number : numbers) {
      PW_CHECK_LT(number, dataset.fields().size());
      const DataField& of = dataset.fields()[number];
      Field& field = fields.emplace_back(Field{number, stored ? of.stored_type() : of.sample_type, {}});
      if (of.normalisation && !stored) field.normalised.emplace(*of.normalisation);
    }
  }

  ~Implementation() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work_to_do.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<at::Tensor> room_for(const LoadRequest& request) const {
    for (const int64_t index : request.indices) {
      PW_CHECK(0 <= index && index < dataset.size(),
               "sample " << index << " of a data set of " << dataset.size());
    }
    std::vector<at::Tensor> tensors;
    for (const Field& field : fields) {
      const TensorType& type = field.type;
      std::vector<int64_t> shape = {static_cast<int64_t>(request.indices.size())};
      shape.insert(shape.end(), type.shape.begin(), type.shape.end());
      tensors.push_back(
          at::empty(shape, at::TensorOptions(scalar_type_of(type.dtype)).pinned_memory(pinned)));
    }
    return tensors;
  }

  // Reads samples [begin, end) of the slot. Without the lock: nobody else touches these, nor the request.
  // `at` is where it is.
  void read(const Slot& slot, size_t begin, size_t end, size_t* at) const {
    std::vector<uint8_t> sample;
    for (*at = begin; *at < end; ++*at) {
      for (size_t i = 0; i < fields.size(); ++i) {
        if (stopping) return;
        const auto& [number, type, normalised] = fields[i];
        const auto bytes = static_cast<size_t>(type.bytes());
        void* const into = static_cast<char*>(slot.tensors[i].mutable_data_ptr()) + *at * bytes;
        if (normalised) sample.resize(static_cast<size_t>(type.elements()));
        dataset.read(slot.request.indices[*at], number, slot.request.key, normalised ? sample.data() : into);
        if (normalised) normalised->write(sample.data(), sample.size(), static_cast<float*>(into));
      }
    }
  }

  // Asks for the next request and puts it into the queue, or notes that there is none. The lock is let go
  // while the source is asked.
  Slot* take(std::unique_lock<std::mutex>& lock) {
    Slot slot;
    std::optional<LoadRequest> request;
    asking = true;
    lock.unlock();
    try {
      request = source();
    } catch (...) {
      slot.open = true;
      slot.fail(0, std::current_exception());
    }
    lock.lock();
    asking = false;
    if (!request) {
      source_ended = true;
      if (slot.error) queue.push_back(std::move(slot));
      return nullptr;
    }
    slot.request = std::move(*request);
    queue.push_back(std::move(slot));
    return &queue.back();
  }

  void open(Slot& slot, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::vector<at::Tensor> tensors;
    std::exception_ptr error;
    try {
      tensors = room_for(slot.request);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot.tensors = std::move(tensors);
    if (error) slot.fail(0, error);
    slot.open = true;
  }

  // Makes a piece of the slot that is not taken yet.
  void make_piece(Slot& slot, std::unique_lock<std::mutex>& lock) {
    // So few that all workers end at about the same time, so many that the lock costs nothing.
    constexpr size_t kPiecesOfAWorker = 4;
    const size_t samples = slot.request.indices.size();
    const size_t pieces = threads.size() < 2 ? 1 : kPiecesOfAWorker * threads.size();
    const size_t begin = slot.taken, end = std::min(samples, begin + (samples + pieces - 1) / pieces);
    slot.taken = end;
    ++slot.being_made;
    lock.unlock();
    size_t at = begin;
    std::exception_ptr error;
    try {
      read(slot, begin, end, &at);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --slot.being_made;
    if (error) slot.fail(at, error);
  }

  Slot* first_to_make() {
    const auto found = std::find_if(queue.begin(), queue.end(),
                                    [](const Slot& slot) { return slot.open && !slot.is_all_taken(); });
    return found == queue.end() ? nullptr : &*found;
  }

  bool may_ask() const { return !source_ended && !asking && queue.size() < ahead; }

  // Nothing will come any more: of a slot that is not open yet pieces will.
  bool is_over() const {
    return stopping || (source_ended && std::all_of(queue.begin(), queue.end(),
                                                    [](const Slot& slot) { return slot.is_all_taken(); }));
  }

  void work() {
    if (!workers.cores.empty()) {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (const int core : workers.cores) CPU_SET(core, &set);
      sched_setaffinity(0, sizeof set, &set);  // best effort: elsewhere it is only slower
    }
    std::unique_lock lock(mutex);
    while (true) {
      Slot* slot = nullptr;
      work_to_do.wait(lock, [&] { return is_over() || (slot = first_to_make()) != nullptr || may_ask(); });
      if (is_over()) return;
      if (slot) {
        make_piece(*slot, lock);
        if (slot->is_done()) ready.notify_all();
        if (slot->is_all_taken() && source_ended) work_to_do.notify_all();
        continue;
      }
      if ((slot = take(lock)) != nullptr) open(*slot, lock);
      work_to_do.notify_all();
      ready.notify_all();
    }
  }

  std::vector<at::Tensor> next() {
    std::unique_lock lock(mutex);
    if (threads.empty()) {
      Slot* const slot = source_ended ? nullptr : take(lock);
      if (slot) {
        open(*slot, lock);
        if (!slot->is_all_taken()) make_piece(*slot, lock);
      }
    } else {
      ready.wait(lock, [&] { return queue.empty() ? source_ended : queue.front().is_done(); });
    }
    PW_CHECK(!queue.empty(), "next() after the last request of a Loader");
    Slot slot = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    work_to_do.notify_one();
    if (slot.error) std::rethrow_exception(slot.error);
    return std::move(slot.tensors);
  }
};

Loader::Loader(const Dataset& dataset, std::vector<size_t> fields, RequestSource requests,
               DataWorkers workers, int64_t ahead, bool pinned, bool stored) {
  PW_CHECK_LE(0, workers.count);
  PW_CHECK_LE(0, ahead);
  implementation_ = std::make_unique<Implementation>(dataset, fields, std::move(requests), std::move(workers),
                                                     ahead, pinned, stored);
  if (ahead == 0) return;
  std::vector<std::thread>& threads = implementation_->threads;
  // Their number decides how many pieces there are: none begins before all are there.
  const std::lock_guard lock(implementation_->mutex);
  for (int64_t i = 0; i < implementation_->workers.count; ++i)
    start_worker(threads, [this_ = implementation_.get()] { this_->work(); });
}

Loader::Loader(const Dataset& dataset, std::vector<size_t> fields, std::vector<LoadRequest> requests,
               DataWorkers workers, int64_t ahead, bool pinned, bool stored)
    : Loader(dataset, std::move(fields), one_after_the_other(std::move(requests)), std::move(workers), ahead,
             pinned, stored) {}

Loader::~Loader() = default;

std::vector<at::Tensor> Loader::next() { return implementation_->next(); }

bool Loader::is_ready() {
  const std::lock_guard lock(implementation_->mutex);
  return !implementation_->queue.empty() && implementation_->queue.front().is_done();
}

}  // namespace pipewright
