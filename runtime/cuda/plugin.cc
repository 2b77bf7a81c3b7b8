#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "models/device/cuda_plugin.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/cross_entropy.h"
#include "runtime/cuda/graph.h"
#include "runtime/cuda/layer_norm.h"
#include "runtime/cuda/nccl_transport.h"
#include "runtime/cuda/shared_block.h"
#include "runtime/cuda/step.h"

namespace pipewright {
namespace {

// 13000 is 13.0.
std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

cudaDeviceProp properties(int64_t device) {
  cudaDeviceProp properties{};
  PW_CUDA(cudaGetDeviceProperties(&properties, static_cast<int>(device)));
  return properties;
}

class Plugin : public CudaPlugin {
 public:
  Plugin() { set_nccl_environment(); }

  std::vector<std::string> versions() override {
    int driver = 0;  // stays so without a driver
    PW_CUDA(cudaDriverGetVersion(&driver));
    int runtime = 0;
    PW_CUDA(cudaRuntimeGetVersion(&runtime));
    const int64_t nccl = nccl_version();
    return {"CUDA toolkit " + cuda_version(CUDART_VERSION) + ", runtime " + cuda_version(runtime),
            "CUDA driver " + (driver == 0 ? "none" : "for CUDA " + cuda_version(driver)),
            "NCCL " + std::to_string(nccl / 10'000) + "." + std::to_string(nccl / 100 % 100) + "." +
                std::to_string(nccl % 100)};
  }

  std::string device_name(int64_t device) override { return properties(device).name; }

  std::string device_identity(int64_t device) override {
    const cudaDeviceProp its = properties(device);
    std::string identity;
    for (const char byte : its.uuid.bytes) {
      constexpr char kDigits[] = "0123456789abcdef";
      identity += kDigits[static_cast<unsigned char>(byte) >> 4U];
      identity += kDigits[static_cast<unsigned char>(byte) & 15U];
    }
    return identity;
  }

  bool has_kernels() override { return pipewright::has_kernels(); }
  void sgd_step(const std::vector<StepTensor>& tensors, const SgdFactors<double>& factors, Momentum momentum,
                bool decay, const StepFinds& finds) override {
    step_on_device(tensors, factors, momentum, decay, finds);
  }
  void adam_step(const std::vector<StepTensor>& tensors, const AdamFactors<double>& factors, Decay decay,
                 const StepFinds& finds) override {
    step_on_device(tensors, factors, decay, finds);
  }
  void lion_step(const std::vector<StepTensor>& tensors, const LionFactors<double>& factors,
                 const StepFinds& finds) override {
    step_on_device(tensors, factors, finds);
  }
  void copy_all(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) override {
    copy_on_device(from, to);
  }

  void cross_entropy(const CrossEntropy& of, const at::Tensor& loss) override {
    cross_entropy_on_device(of, loss);
  }
  void cross_entropy_backward(const CrossEntropy& of, const at::Tensor& loss_gradient,
                              const at::Tensor& scores_gradient) override {
    cross_entropy_backward_on_device(of, loss_gradient, scores_gradient);
  }
  void layer_norm_weight_gradients(const LayerNorm& of, const at::Tensor& weight_gradient,
                                   const at::Tensor& bias_gradient) override {
    layer_norm_weight_gradients_on_device(of, weight_gradient, bias_gradient);
  }

  std::unique_ptr<DeviceGraphs> make_graphs(int64_t device) override { return make_cuda_graphs(device); }

  int64_t nccl_version() override { return nccl_version_at_run_time(); }
  std::unique_ptr<Transport> make_nccl_transport(c10d::Store& store, const NcclSettings& settings) override {
    return connect_over_nccl(store, settings);
  }

  std::unique_ptr<BlockSharing> make_block_sharing(int64_t device) override {
    return share_blocks_of(device);
  }

  void begin_range(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void end_range() override { nvtxRangePop(); }
};

}  // namespace
}  // namespace pipewright

extern "C" __attribute__((visibility("default"))) pipewright::CudaPlugin* pipewright_cuda_plugin(
    int interface_version) {
  static pipewright::Plugin plugin;
  return interface_version == pipewright::kCudaPluginInterface ? &plugin : nullptr;
}
