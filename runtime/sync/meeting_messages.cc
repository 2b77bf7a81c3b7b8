#include "runtime/sync/meeting_messages.h"

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include "models/memory/memory_meter.h"

namespace pipewright {

std::vector<std::unique_ptr<Request>> send_meeting(Transport& transport, int64_t peer, int64_t tag,
                                                   const MeetingHead& head,
                                                   const std::vector<at::Tensor>& weights) {
  std::vector<std::unique_ptr<Request>> sends;
  sends.push_back(transport.send(at::tensor(at::IntArrayRef(head), at::kLong), peer, tag));
  for (const at::Tensor& flat : weights)
    if (flat.numel() > 0) sends.push_back(transport.send(flat, peer, tag + 1));
  return sends;
}

MeetingHead receive_meeting(Transport& transport, int64_t peer, int64_t tag) {
  const at::Tensor head = at::empty({2}, at::TensorOptions(at::kLong));
  transport.receive(head, peer, tag)->wait();
  return {head.const_data_ptr<int64_t>()[0], head.const_data_ptr<int64_t>()[1]};
}

std::vector<at::Tensor> receive_weights(Transport& transport, int64_t peer, int64_t tag,
                                        const std::vector<at::Tensor>& like) {
  const MemoryScope scope(MemoryPurpose::kMessages);
  std::vector<at::Tensor> weights;
  std::vector<std::unique_ptr<Request>> receives;
  for (const at::Tensor& flat : like) {
    weights.push_back(at::empty_like(flat));
    if (flat.numel() > 0) receives.push_back(transport.receive(weights.back(), peer, tag + 1));
  }
  for (const auto& request : receives) request->wait();
  return weights;
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

std::vector<at::Tensor> mean_of(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  std::vector<at::Tensor> mean;
  for (size_t i = 0; i < a.size(); ++i) mean.push_back((a[i] + b[i]).div_(2.0));
  return mean;
}

std::vector<at::Tensor> with_change(const std::vector<at::Tensor>& weights,
                                    const std::vector<at::Tensor>& published,
                                    const std::vector<at::Tensor>& met) {
  std::vector<at::Tensor> changed;
  for (size_t i = 0; i < weights.size(); ++i) changed.push_back(weights[i] + (met[i] - published[i]));
  return changed;
}

}  // namespace pipewright
