// All that the programs know of CUDA: an abstract class. Its implementation is the shared library
// libpipewright_cuda.so beside the programs, which models/device/device.h opens when a device of CUDA is
// asked for; the programs link no CUDA library. No header of CUDA is included here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/device/device_graph.h"
#include "models/device/step_arithmetic.h"

namespace c10d {
class Store;
}

namespace pipewright {

class BlockSharing;
class Transport;
struct DeviceLinks;  // runtime/transport/device_links.h

/// Set for tests of NCCL on one GPU: ranks that share it are taken for ranks with a GPU each, on hosts of
/// their own, and NCCL connects them through the network of this one.
inline constexpr const char* kShareGpuVariable = "PIPEWRIGHT_SHARE_GPU";

struct NcclSettings {
  std::string name;  ///< keeps the keys of several worlds in one store apart
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t device = 0;
  const DeviceLinks* links = nullptr;  ///< of the job, the same on all ranks
};

/// One tensor of a step of an update rule: contiguous arrays of one size, dtype (float, double, bfloat16,
/// half) and device. `next` may be `old`; no two others overlap. What the rule does not keep is undefined.
struct StepTensor {
  at::Tensor old;
  at::Tensor gradient;
  at::Tensor next;
  at::Tensor first;   ///< velocity, or first moment; changed in place
  at::Tensor second;  ///< second moment; changed in place
  at::Tensor copy;    ///< of weights in float, or undefined: in bfloat16, becomes `next`
  int32_t index = 0;  ///< the caller's number of it, for StepFinds::not_finite
};

/// What a step is to find out about its gradients on the way, in tensors of one element on their device;
/// undefined: nothing.
struct StepFinds {
  at::Tensor
      not_finite;  ///< int32: becomes index + 1 of a tensor with a gradient that is not finite, if larger
  at::Tensor square_sum;  ///< double: the squares of all gradients are added
};

/// The cross entropy of rows of scores with a class each, in tensors of one device.
struct CrossEntropy {
  at::Tensor scores;      ///< (rows, classes), float or bfloat16, a row's numbers one after the other
  at::Tensor labels;      ///< (rows), int64, contiguous
  int64_t ignored = 0;    ///< the label of rows that ask nothing
  int64_t reduction = 0;  ///< at::Reduction
  at::Tensor log_sums;    ///< (rows), float: the logarithm of the sum of a row's exponentials
  at::Tensor asking;      ///< float, one element: how many rows ask; of Reduction::None nobody's
};

/// The layer norm of rows of floats, in contiguous tensors of one device.
struct LayerNorm {
  at::Tensor input;     ///< (rows, columns)
  at::Tensor gradient;  ///< of the output, as many
  at::Tensor mean;      ///< one number a row
  at::Tensor rstd;      ///< 1 / standard deviation of each row
};

/// Changes with this file: a plug-in of another build is refused instead of called.
constexpr int kCudaPluginInterface = 11;

/// `device`: the number of a device of this process, as CUDA_VISIBLE_DEVICES leaves them. Any thread may
/// call. RunError with CUDA's own words where a call of CUDA fails.
class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;

  /// A line each for --version: the toolkit that the plug-in was built with, the runtime, the driver, NCCL.
  /// Needs no device.
  virtual std::vector<std::string> versions() = 0;
  /// "NVIDIA H100 80GB HBM3".
  virtual std::string device_name(int64_t device) = 0;
  /// The same for two ranks if and only if they have the same device, whatever number it has there.
  virtual std::string device_identity(int64_t device) = 0;

  /// Whether this build has kernels of its own (it was made with nvcc). Without, the seven calls below throw.
  virtual bool has_kernels() = 0;
  /// A step of all `tensors`, of one dtype: out of place in one pass over the memory, in one launch (one more
  /// for each 500 tensors), in the order of the current stream. The arithmetic is that of
  /// models/device/step_arithmetic.h; so are the bits. Factors are rounded to what is computed in.
  virtual void sgd_step(const std::vector<StepTensor>& tensors, const SgdFactors<double>& factors,
                        Momentum momentum, bool decay, const StepFinds& finds) = 0;
  virtual void adam_step(const std::vector<StepTensor>& tensors, const AdamFactors<double>& factors,
                         Decay decay, const StepFinds& finds) = 0;
  virtual void lion_step(const std::vector<StepTensor>& tensors, const LionFactors<double>& factors,
                         const StepFinds& finds) = 0;
  /// to[i] becomes from[i]: contiguous tensors of one device, equal in bytes, in one launch (one more for
  /// each 1024), in the order of the current stream. Packs what crosses a cut into one message, and back.
  virtual void copy_all(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) = 0;

  /// Writes `loss` (float; a number, of Reduction::None one a row), `log_sums` and `asking`, in the order of
  /// the current stream; sums are added in an order that depends on nothing. A label that is no class fails
  /// an assertion on the device, as LibTorch's does.
  virtual void cross_entropy(const CrossEntropy& of, const at::Tensor& loss) = 0;
  /// Writes the gradient of the scores from that of the loss (float) into the first columns of
  /// `scores_gradient`: contiguous, of their dtype, as many rows and as many columns or more, which become
  /// zeros.
  virtual void cross_entropy_backward(const CrossEntropy& of, const at::Tensor& loss_gradient,
                                      const at::Tensor& scores_gradient) = 0;

  /// Writes the gradients of the weight and the bias, (columns) floats each, in the order of the current
  /// stream; sums are added in an order that depends on nothing but the shape.
  virtual void layer_norm_weight_gradients(const LayerNorm& of, const at::Tensor& weight_gradient,
                                           const at::Tensor& bias_gradient) = 0;

  /// Recordings of CUDA graphs on `device`.
  virtual std::unique_ptr<DeviceGraphs> make_graphs(int64_t device) = 0;

  /// NCCL's at run time: 22809 is 2.28.9.
  virtual int64_t nccl_version() = 0;
  /// Messages and sums of tensors of `device` over the links of the job, and no others; a communicator for
  /// each, all connected when it returns. Every rank calls it, each with a device of its own; it blocks until
  /// all have. Halves of messages wait for each other on the device: runtime/transport/paired.h. Sums have
  /// NCCL's order. abort() may come from any thread and ends what waits on the device. PeerError if NCCL
  /// cannot connect.
  virtual std::unique_ptr<Transport> make_nccl_transport(c10d::Store& store,
                                                         const NcclSettings& settings) = 0;

  /// Memory of `device` that other processes with the same device open (runtime/transport/shared_blocks.h).
  virtual std::unique_ptr<BlockSharing> make_block_sharing(int64_t device) = 0;

  /// A named range on the time lines of NVIDIA's tools; ranges of a thread nest.
  virtual void begin_range(const std::string& name) = 0;
  virtual void end_range() = 0;
};

}  // namespace pipewright

extern "C" {
/// The one function that the library exports. Owned by the library, for the life of the process; null if
/// `interface_version` is not the one that it was built with.
using PipewrightCudaPlugin = pipewright::CudaPlugin*(int interface_version);
}
