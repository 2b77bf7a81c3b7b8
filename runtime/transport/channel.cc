#include "runtime/transport/channel.h"

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
    const auto post = [&](const MessagePart& part, int64_t tag) {
      posted.deliveries.push_back(transport_.take(part.shape, part.options(), expected.peer, tag));
    };
    if (transport_.packer(expected.peer) != nullptr && Packer::packs(*expected.parts)) {
      posted.packed = expected.parts;
      post(Packer::array_of(*expected.parts), first_tag_);
    } else {
      int64_t tag = first_tag_;
      for (const MessagePart& part : *expected.parts) post(part, tag++);
    }
    posted_.push_back(std::move(posted));
  }
}

std::vector<at::Tensor> Inbox::next() {
  PW_CHECK_LT(next_, order_.size());
  post_up_to(1);
  std::vector<at::Tensor> tensors;
  for (const auto& delivery : posted_.front().deliveries) tensors.push_back(delivery->wait());
  if (posted_.front().packed != nullptr) tensors = Packer::unpack(tensors.at(0), *posted_.front().packed);
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
  for (at::Tensor& message : messages) requests.push_back(transport_.give(std::move(message), peer, tag++));
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
