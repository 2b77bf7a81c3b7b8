#include "runtime/transport/channel.h"

#include <ATen/ops/empty.h>

#include "graph/error.h"

namespace pipewright {

Inbox::Inbox(Transport& transport, int64_t first_tag, std::vector<Expected> order, int64_t ahead)
    : transport_(transport),
      first_tag_(first_tag),
      order_(std::move(order)),
      ahead_(static_cast<size_t>(ahead)) {
  PW_CHECK_LE(1, ahead);
  post_up_to(ahead_);
}

void Inbox::post_up_to(size_t count) {
  while (posted_.size() < count && next_ + posted_.size() < order_.size()) {
    const Expected& expected = order_[next_ + posted_.size()];
    Posted posted;
    if (transport_.packer(expected.peer) != nullptr && Packer::packs(*expected.parts)) {
      const at::Tensor array = Packer::array_for(*expected.parts);
      posted.requests.push_back(transport_.receive(array, expected.peer, first_tag_));
      posted.tensors = Packer::unpack(array, *expected.parts);
    } else {
      int64_t tag = first_tag_;
      for (const MessagePart& part : *expected.parts) {
        at::Tensor tensor = at::empty(part.shape, part.options());
        posted.requests.push_back(transport_.receive(tensor, expected.peer, tag++));
        posted.tensors.push_back(std::move(tensor));
      }
    }
    posted_.push_back(std::move(posted));
  }
}

std::vector<at::Tensor> Inbox::next() {
  PW_CHECK_LT(next_, order_.size());
  post_up_to(1);
  for (const auto& request : posted_.front().requests) request->wait();
  std::vector<at::Tensor> tensors = std::move(posted_.front().tensors);
  posted_.pop_front();
  ++next_;
  post_up_to(ahead_);
  return tensors;
}

Outbox::Outbox(Transport& transport, int64_t first_tag, int64_t limit)
    : transport_(transport), first_tag_(first_tag), limit_(static_cast<size_t>(limit)) {
  PW_CHECK_LE(1, limit);
}

Outbox::~Outbox() = default;

void Outbox::send(int64_t peer, const std::vector<at::Tensor>& tensors) {
  if (under_way_.size() >= limit_) wait_for_oldest();
  std::vector<at::Tensor> messages;
  for (const at::Tensor& tensor : tensors) {
    messages.push_back(tensor.detach().contiguous());
    sent_bytes_ += static_cast<int64_t>(tensor.nbytes());
  }
  const Packer* const packer = transport_.packer(peer);
  if (packer != nullptr && Packer::packs(messages)) messages = {packer->pack(messages)};
  std::vector<std::unique_ptr<Request>> requests;
  int64_t tag = first_tag_;
  for (at::Tensor& message : messages) requests.push_back(transport_.send(std::move(message), peer, tag++));
  under_way_.push_back(std::move(requests));
}

void Outbox::wait_for_oldest() {
  for (const auto& request : under_way_.front()) request->wait();
  under_way_.pop_front();
}

void Outbox::flush() {
  while (!under_way_.empty()) wait_for_oldest();
}

}  // namespace pipewright
