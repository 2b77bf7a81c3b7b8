#include "runtime/transport/transport.h"

#include <ATen/ops/empty.h>

namespace pipewright {
namespace {

class FreshDelivery : public Delivery {
 public:
  FreshDelivery(at::Tensor tensor, std::unique_ptr<Request> request)
      : tensor_(std::move(tensor)), request_(std::move(request)) {}
  at::Tensor wait() override {
    request_->wait();
    return std::move(tensor_);
  }

 private:
  at::Tensor tensor_;
  std::unique_ptr<Request> request_;
};

}  // namespace

std::unique_ptr<Delivery> Transport::take(at::IntArrayRef shape, const at::TensorOptions& options,
                                          int64_t peer, int64_t tag) {
  at::Tensor tensor = at::empty(shape, options);
  auto request = receive(tensor, peer, tag);
  return std::make_unique<FreshDelivery>(std::move(tensor), std::move(request));
}

}  // namespace pipewright
