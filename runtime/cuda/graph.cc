#include "runtime/cuda/graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "runtime/cuda/check.h"

namespace pipewright {
namespace {

// LibTorch's exceptions, as ours.
template <typename Function>
void call(const char* what, const Function& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    static_cast<void>(cudaGetLastError());
    const std::string text = error.what_without_backtrace();
    throw RunError(std::string("CUDA: ") + what + ": " + text.substr(0, text.find('\n')));
  }
}

class Graph : public DeviceGraph {
 public:
  void replay() override {
    call("a graph cannot be started", [&] { graph_.replay(); });
  }
  int64_t size() const override { return size_; }

 private:
  friend class Graphs;
  at::cuda::CUDAGraph graph_{/*keep_graph=*/true};  // kept: it is counted after the capture
  int64_t size_ = 0;
};

// What `inner` does in its life is behind what `outer` had to do, and before what it will have to.
class Between {
 public:
  Between(c10::cuda::CUDAStream outer, c10::cuda::CUDAStream inner) : outer_(outer), inner_(inner) {
    follow(outer_, inner_);
  }
  ~Between() {
    try {
      follow(inner_, outer_);
    } catch (const c10::Error&) {
      // The device itself has failed: the next call that asks it for something says so.
    }
  }
  Between(const Between&) = delete;
  Between& operator=(const Between&) = delete;

 private:
  static void follow(c10::cuda::CUDAStream first, c10::cuda::CUDAStream second) {
    at::cuda::CUDAEvent event;
    event.record(first);
    event.block(second);
  }
  c10::cuda::CUDAStream outer_, inner_;
};

class Graphs : public DeviceGraphs {
 public:
  explicit Graphs(int64_t device)
      : device_(static_cast<c10::DeviceIndex>(device)),
        pool_(at::cuda::graph_pool_handle()),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_)) {}

  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work,
                                      const std::vector<at::Generator>& generators) override {
    // What ran before left its memory in the allocator's hands, and none of it can serve a recording.
    if (std::exchange(fresh_, false)) c10::cuda::CUDACachingAllocator::emptyCache();
    auto made = std::make_unique<Graph>();
    at::cuda::CUDAGraph& graph = made->graph_;
    // Beginning a capture writes the generators' states on the device: behind those who read them still, and
    // before those who write them next.
    const Between between(c10::cuda::getCurrentCUDAStream(device_), stream_);
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    try {
      call("a graph cannot be recorded", [&] {
        for (const at::Generator& generator : generators) graph.register_generator_state(generator);
        // Of this thread only: other threads of the process (transports, NCCL's watchdog) go on meanwhile.
        // Autograd's thread takes part through the stream.
        graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      });
      work();
      call("a graph cannot be recorded", [&] { graph.capture_end(); });
    } catch (...) {
      abandon(generators);
      throw;
    }
    size_t nodes = 0;
    PW_CUDA(cudaGraphGetNodes(graph.raw_cuda_graph(), nullptr, &nodes));
    made->size_ = static_cast<int64_t>(nodes);
    call("a graph cannot be recorded", [&] { graph.instantiate(); });
    return made;
  }

 private:
  // What CUDAGraph leaves undone when a capture fails, at whatever step: the stream, the allocators and the
  // generators may still believe in it. What was not begun, or is over, is refused, and stays as it is.
  void abandon(const std::vector<at::Generator>& generators) {
    const auto if_begun = [](const auto& undo) {
      try {
        undo();
      } catch (const c10::Error&) {
      }
    };
    cudaGraph_t rest = nullptr;
    static_cast<void>(cudaStreamEndCapture(stream_.stream(), &rest));
    if (rest) static_cast<void>(cudaGraphDestroy(rest));
    static_cast<void>(cudaGetLastError());
    if_begun([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_); });
    if_begun([&] { c10::cuda::CUDACachingAllocator::releasePool(device_, pool_); });
    at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
    if_begun([&] { host->end_allocate_to_pool(pool_); });
    if_begun([&] { host->release_pool(pool_); });
    // Nobody may have it any more, and an allocator takes no pool up again that it was to free.
    pool_ = at::cuda::graph_pool_handle();
    // A copy of a state records nothing.
    std::vector<at::Generator> all = generators;
    all.push_back(at::cuda::detail::getDefaultCUDAGenerator(device_));
    for (at::Generator& generator : all) if_begun([&] { generator.graphsafe_set_state(generator.clone()); });
  }

  c10::DeviceIndex device_;
  at::cuda::MempoolId_t pool_;
  // One for all: the nodes of a recorded forward run their backward on the stream that they were made on.
  c10::cuda::CUDAStream stream_;
  bool fresh_ = true;  // nothing was recorded yet
};

}  // namespace

std::unique_ptr<DeviceGraphs> make_cuda_graphs(int64_t device) { return std::make_unique<Graphs>(device); }

}  // namespace pipewright
