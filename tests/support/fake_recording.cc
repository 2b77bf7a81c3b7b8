#include "tests/support/fake_recording.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "graph/error.h"
#include "tests/support/fake_recorder.h"

namespace pipewright::testing {
namespace {

constexpr at::DeviceType kFake = at::kPrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

// ---- Streams ----------------------------------------------------------------------------------------------

thread_local c10::StreamId streams[kDevices] = {0, 0};

struct Registry {
  std::mutex mutex;
  std::map<c10::StreamId, FakeRecorder*> recorders;
  c10::StreamId last_stream = 0;
  FakeRecordingCounts counts;
  std::vector<MemoryRange> outside;
  int64_t most = int64_t{1} << 30;
};
Registry& registry() {
  static Registry registry;
  return registry;
}

// ---- The generator ----------------------------------------------------------------------------------------

struct Stream : c10::intrusive_ptr_target {
  uint64_t seed = 0;
};

class FakeGenerator : public c10::GeneratorImpl {
 public:
  FakeGenerator(c10::DeviceIndex device, c10::intrusive_ptr<Stream> stream)
      : GeneratorImpl(at::Device(kFake, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        stream_(std::move(stream)) {}
  void set_current_seed(uint64_t seed) override {
    refuse_while_recording(device().index(), "seeding a generator");
    stream_->seed = seed;
    at::Generator host = at::detail::getDefaultCPUGenerator();
    host.set_current_seed(seed);
  }
  uint64_t current_seed() const override { return stream_->seed; }
  uint64_t seed() override {
    set_current_seed(1);
    return 1;
  }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "the fake generator has no offset"); }
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl&) override { TORCH_CHECK(false, "the fake generator has no state"); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    TORCH_CHECK(false, "the fake generator has no state");
  }
  void graphsafe_set_state(const c10::intrusive_ptr<GeneratorImpl>& other) override {
    stream_ = stream_of(other.get());
  }
  c10::intrusive_ptr<GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<FakeGenerator>(device().index(), stream_);
  }
  static const c10::intrusive_ptr<Stream>& stream_of(GeneratorImpl* generator) {
    auto* const ours = dynamic_cast<FakeGenerator*>(generator);
    TORCH_CHECK(ours, "a generator of another device");
    return ours->stream_;
  }

 private:
  GeneratorImpl* clone_impl() const override {
    auto stream = c10::make_intrusive<Stream>();
    stream->seed = stream_->seed;
    return new FakeGenerator(device().index(), std::move(stream));
  }
  c10::intrusive_ptr<Stream> stream_;
};

// ---- Memory -----------------------------------------------------------------------------------------------

using Held = c10::weak_intrusive_ptr<c10::StorageImpl>;

// A block that was made while something was recorded, and its life in the order of recordings.
struct Made {
  c10::Storage storage;    // keeps it for replays
  std::vector<Held> held;  // how the others hold it
  int64_t made_in = 0;
  std::optional<int64_t> freed_before{}, freed_in{};  // one of them, once nobody holds it

  bool is_held() const {
    return std::any_of(held.begin(), held.end(), [](const Held& one) { return !one.expired(); });
  }
  bool is_freed() const { return freed_before || freed_in; }
  void spoil() { std::memset(storage.mutable_data(), 0xFF, storage.nbytes()); }
};

// What the recordings of one DeviceGraphs share. An allocator gives the memory of a block that was freed to
// any later one, so two blocks whose lives do not overlap are taken to have the same memory.
struct Pool {
  std::map<const void*, Made> made;  // by address
  int64_t recordings = 0;

  int64_t begin() {
    for (auto& [address, block] : made)
      if (!block.is_freed() && !block.is_held()) block.freed_before = recordings;
    return recordings++;
  }
  void end(int64_t recording) {
    for (auto& [address, block] : made)
      if (!block.is_freed() && !block.is_held()) block.freed_in = recording;
  }
  // Blocks that may have the memory of one which this recording makes; those that it frees itself it may read
  // before.
  void spoil_before(int64_t recording) {
    for (auto& [address, block] : made) {
      if (block.made_in >= recording || (block.freed_before && *block.freed_before <= recording) ||
          (block.freed_in && *block.freed_in < recording))
        block.spoil();
    }
  }
  void spoil_after(int64_t recording) {
    for (auto& [address, block] : made)
      if (block.freed_in == recording) block.spoil();
  }
};

at::Tensor borrowed(const at::Tensor& host) {
  if (!host.defined() || host.storage().nbytes() == 0) return host;
  auto impl = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), host.storage().nbytes(),
      at::DataPtr(host.storage().mutable_data(), at::kCPU), c10::GetAllocator(at::kCPU), /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(impl)), c10::DispatchKeySet(c10::DispatchKey::CPU), host.dtype());
  tensor.unsafeGetTensorImpl()->set_storage_offset(host.storage_offset());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
  if (host.unsafeGetTensorImpl()->is_wrapped_number()) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// ---- Recordings -------------------------------------------------------------------------------------------

struct Entry {
  std::function<std::vector<at::Tensor>()> again;
  std::vector<at::Tensor> results;    // borrowed
  c10::intrusive_ptr<Stream> stream;  // of what draws
};

class Recording : public DeviceGraph, public FakeRecorder {
 public:
  Recording(std::shared_ptr<Pool> pool, c10::DeviceIndex device, const std::vector<at::Generator>& generators)
      : pool_(std::move(pool)), number_(pool_->begin()), device_(device) {
    for (const at::Generator& generator : generators)
      streams_.push_back(FakeGenerator::stream_of(generator.unsafeGetGeneratorImpl()));
  }

  at::Tensor borrow(const at::Tensor& host_view) override {
    if (!host_view.defined() || host_view.storage().nbytes() == 0) return host_view;
    const auto* const begin = static_cast<const char*>(host_view.storage().data());
    if (pool_->made.count(begin) == 0 && before_.count(begin) == 0)
      before_[begin] = std::string(begin, host_view.storage().nbytes());
    return borrowed(host_view);
  }

  void add(std::function<std::vector<at::Tensor>()> again, const std::vector<at::Tensor>& on_host,
           const std::vector<at::Tensor>& on_device, bool draws) override {
    Entry entry{std::move(again), {}, {}};
    for (size_t i = 0; i < on_host.size(); ++i) {
      entry.results.push_back(borrowed(on_host[i]));
      if (!on_host[i].defined() || on_host[i].storage().nbytes() == 0) continue;
      const auto* const begin = static_cast<const char*>(on_host[i].storage().data());
      if (before_.count(begin) > 0) continue;
      const auto made = pool_->made.try_emplace(begin, Made{on_host[i].storage(), {}, number_}).first;
      made->second.held.emplace_back(on_device[i].storage().getWeakStorageImpl());
    }
    if (draws) {
      entry.stream = FakeGenerator::stream_of(default_fake_generator(device_).unsafeGetGeneratorImpl());
      TORCH_CHECK(std::find(streams_.begin(), streams_.end(), entry.stream) != streams_.end(),
                  "a generator that was not registered with the recording");
    }
    entries_.push_back(std::move(entry));
  }

  // Nothing of it has happened.
  void end() {
    for (const auto& [begin, bytes] : before_)
      std::memcpy(const_cast<char*>(begin), bytes.data(), bytes.size());
    pool_->end(number_);
  }
  std::vector<MemoryRange> outside() const {
    std::vector<MemoryRange> ranges;
    for (const auto& [begin, bytes] : before_) ranges.emplace_back(begin, bytes.size());
    return ranges;
  }

  void replay() override {
    refuse_while_recording(device_, "starting a graph");
    pool_->spoil_before(number_);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (const Entry& entry : entries_) {
      if (entry.stream) {
        at::Generator host = at::detail::getDefaultCPUGenerator();
        host.set_current_seed(entry.stream->seed);
      }
      const std::vector<at::Tensor> results = entry.again();
      TORCH_CHECK(results.size() == entry.results.size());
      for (size_t i = 0; i < results.size(); ++i) {
        if (!results[i].defined() || results[i].data_ptr() == entry.results[i].data_ptr()) continue;
        const at::Tensor& place = entry.results[i];
        place.copy_(results[i]);
      }
    }
    pool_->spoil_after(number_);
    const std::lock_guard lock(registry().mutex);
    ++registry().counts.replayed;
    registry().counts.operators += size();
  }
  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }

 private:
  std::shared_ptr<Pool> pool_;
  int64_t number_;
  c10::DeviceIndex device_;
  std::vector<c10::intrusive_ptr<Stream>> streams_;
  std::map<const char*, std::string> before_;  // memory from outside, as it was
  std::vector<Entry> entries_;
};

class Graphs : public DeviceGraphs {
 public:
  explicit Graphs(at::Device device) : device_(device) {}

  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work,
                                      const std::vector<at::Generator>& generators) override {
    auto recording = std::make_unique<Recording>(pool_, device_.index(), generators);
    {
      const std::lock_guard lock(registry().mutex);
      if (registry().counts.recorded >= registry().most)
        throw RunError("CUDA: the fake device records no more");
      ++registry().counts.recorded;
      registry().recorders[stream_] = recording.get();
    }
    const auto stop = [&] {
      const std::lock_guard lock(registry().mutex);
      registry().recorders.erase(stream_);
      recording->end();
      const auto outside = recording->outside();
      registry().outside.insert(registry().outside.end(), outside.begin(), outside.end());
    };
    try {
      const c10::StreamGuard on_stream(c10::Stream(c10::Stream::UNSAFE, device_, stream_));
      work();
    } catch (...) {
      stop();
      throw;
    }
    stop();
    return recording;
  }

 private:
  at::Device device_;
  // One for all: the nodes of a recorded forward run their backward on the stream that they were made on.
  c10::StreamId stream_ = new_fake_stream();
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

}  // namespace

c10::StreamId exchange_fake_stream(c10::DeviceIndex device, c10::StreamId stream) {
  return std::exchange(streams[device], stream);
}
c10::StreamId fake_stream(c10::DeviceIndex device) { return streams[device]; }
c10::StreamId new_fake_stream() {
  const std::lock_guard lock(registry().mutex);
  return ++registry().last_stream;
}

at::Generator& default_fake_generator(c10::DeviceIndex device) {
  static at::Generator generators[kDevices] = {
      at::make_generator<FakeGenerator>(0, c10::make_intrusive<Stream>()),
      at::make_generator<FakeGenerator>(1, c10::make_intrusive<Stream>())};
  return generators[device];
}

FakeRecorder* FakeRecorder::current(c10::DeviceIndex device) {
  const c10::StreamId stream = streams[device];
  if (stream == 0) return nullptr;
  const std::lock_guard lock(registry().mutex);
  const auto recorder = registry().recorders.find(stream);
  return recorder == registry().recorders.end() ? nullptr : recorder->second;
}

void refuse_while_recording(c10::DeviceIndex device, const char* what) {
  TORCH_CHECK(!FakeRecorder::current(device), what, ": operation not permitted while the stream is recorded");
}

std::unique_ptr<DeviceGraphs> make_fake_graphs(at::Device device) { return std::make_unique<Graphs>(device); }

FakeRecordingCounts fake_recording_counts() {
  const std::lock_guard lock(registry().mutex);
  return registry().counts;
}

std::vector<MemoryRange> memory_from_outside() {
  const std::lock_guard lock(registry().mutex);
  return registry().outside;
}

void reset_fake_recordings(int64_t most) {
  const std::lock_guard lock(registry().mutex);
  registry().counts = {};
  registry().outside.clear();
  registry().most = most;
}

}  // namespace pipewright::testing
