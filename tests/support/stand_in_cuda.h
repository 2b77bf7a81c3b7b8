// A CUDA plug-in without CUDA, for a device that is none. What a test needs of it, it overrides.
#pragma once

#include <stdexcept>

#include "models/device/cuda_plugin.h"
#include "runtime/transport/shared_blocks.h"
#include "runtime/transport/transport.h"

namespace pipewright::testing {

class StandInCuda : public CudaPlugin {
 public:
  std::vector<std::string> versions() override { return {"no CUDA: a stand-in"}; }
  std::string device_name(int64_t) override { return "stand-in"; }
  std::string device_identity(int64_t) override { return "the only one"; }
  bool has_kernels() override { return false; }
  void sgd_step(const std::vector<StepTensor>&, const SgdFactors<double>&, Momentum, bool,
                const StepFinds&) override {
    nothing();
  }
  void adam_step(const std::vector<StepTensor>&, const AdamFactors<double>&, Decay,
                 const StepFinds&) override {
    nothing();
  }
  void lion_step(const std::vector<StepTensor>&, const LionFactors<double>&, const StepFinds&) override {
    nothing();
  }
  void copy_all(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&) override { nothing(); }
  void cross_entropy(const CrossEntropy&, const at::Tensor&) override { nothing(); }
  void cross_entropy_backward(const CrossEntropy&, const at::Tensor&, const at::Tensor&) override {
    nothing();
  }
  void layer_norm_weight_gradients(const LayerNorm&, const at::Tensor&, const at::Tensor&) override {
    nothing();
  }
  std::unique_ptr<DeviceGraphs> make_graphs(int64_t) override { nothing(); }
  int64_t nccl_version() override { return 0; }
  std::unique_ptr<Transport> make_nccl_transport(c10d::Store&, const NcclSettings&) override { nothing(); }
  std::unique_ptr<BlockSharing> make_block_sharing(int64_t) override { nothing(); }
  void begin_range(const std::string&) override {}
  void end_range() override {}

 private:
  [[noreturn]] static void nothing() { throw std::logic_error("the stand-in for CUDA cannot do that"); }
};

}  // namespace pipewright::testing
