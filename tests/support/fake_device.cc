#include "tests/support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <utility>

#include "tests/support/fake_memory.h"
#include "tests/support/fake_recorder.h"
#include "tests/support/fake_state.h"

namespace pipewright::testing {
namespace {

thread_local c10::DeviceIndex current = 0;

struct FakeEvent {
  std::atomic<int64_t> queries_left;
  // Of an event that has a time:
  int64_t number = 0;  // in the order of recording
  double seconds = 0;  // by the device's clock
};
std::atomic<int64_t> timing_events = 0;
std::atomic<int64_t> timing_events_reached = 0;

void reach(int64_t number) {
  int64_t reached = timing_events_reached;
  while (reached < number && !timing_events_reached.compare_exchange_weak(reached, number)) {
  }
}

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  static at::Device indexed(at::Device device) {
    return {kFake, device.has_index() ? device.index() : current};
  }
  static c10::Stream stream_of(at::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  at::DeviceType type() const override { return kFake; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device old(kFake, current);
    current = device.index();
    return old;
  }
  at::Device getDevice() const override { return {kFake, current}; }
  void setDevice(at::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(at::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(at::Device device) const override {
    const at::Device here = indexed(device);
    return stream_of(here, fake_stream(here.index()));
  }
  c10::Stream getDefaultStream(at::Device device) const override { return stream_of(indexed(device), 0); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override {
    return stream_of(indexed(device), new_fake_stream());
  }
  c10::Stream getNewStream(at::Device device, int) const override {
    return stream_of(indexed(device), new_fake_stream());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(stream.device(), exchange_fake_stream(stream.device_index(), stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag flag) const override {
    if (!*event) *event = new FakeEvent{};
    auto* const made = static_cast<FakeEvent*>(*event);
    made->queries_left = fake_counters().late.load();
    if (flag != c10::EventFlag::BACKEND_DEFAULT) return;
    made->number = ++timing_events;
    made->seconds = fake_seconds();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    const int64_t number = static_cast<FakeEvent*>(event)->number;
    if (number > 0) return number <= timing_events_reached;
    auto& left = static_cast<FakeEvent*>(event)->queries_left;
    return left <= 0 || left.fetch_sub(1) <= 1;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    return 1e3 * (static_cast<FakeEvent*>(end)->seconds - static_cast<FakeEvent*>(begin)->seconds);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    refuse_while_recording(stream.device_index(), "waiting for a stream");
    wait_for_all();
  }
  void synchronizeEvent(void* event) const override {
    ++fake_counters().event_waits;
    static_cast<FakeEvent*>(event)->queries_left = 0;
    reach(static_cast<FakeEvent*>(event)->number);
  }
  void synchronizeDevice(c10::DeviceIndex) const override { wait_for_all(); }

 private:
  static void wait_for_all() {
    ++fake_counters().waits;
    reach(timing_events);
  }
};

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kFakeDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(at::kCPU); }
  bool isPinnedPtr(const void*) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_fake_generator(index < 0 ? current : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

const bool registered = [] {
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(new FakeHooks);
  c10::SetAllocator(kFake, fake_allocator());
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard)

}  // namespace

at::Device fake_device(int64_t index) { return {kFake, static_cast<c10::DeviceIndex>(index)}; }

FakeDeviceCounts fake_device_counts() {
  const FakeCounters& c = fake_counters();
  return {c.operators, c.uploads, c.blocking_uploads, c.downloads, c.waits, c.event_waits, c.uploaded_bytes};
}

void reset_fake_device(int64_t late) {
  FakeCounters& c = fake_counters();
  c.operators = c.uploads = c.blocking_uploads = c.downloads = c.waits = c.event_waits = 0;
  c.uploaded_bytes = 0;
  c.late = late;
}

void set_fake_clock(std::function<double(const std::string&)> seconds_of) {
  set_fake_seconds(std::move(seconds_of));
}

}  // namespace pipewright::testing
