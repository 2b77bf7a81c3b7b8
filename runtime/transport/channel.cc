#include "runtime/transport/channel.h"

#include <ATen/ops/tensor.h>

#include <numeric>

#include "graph/error.h"

namespace pipewright {
namespace {

// Tensors of fewer dimensions lie in one way only.
bool has_ways_to_lie(size_t dimensions) { return dimensions > 1; }

// The orders of such tensors, one after the other.
std::vector<int64_t> to_numbers(const std::vector<MemoryOrder>& orders) {
  std::vector<int64_t> numbers;
  for (const MemoryOrder& order : orders)
    if (has_ways_to_lie(order.size())) numbers.insert(numbers.end(), order.begin(), order.end());
  return numbers;
}

int64_t count_of_numbers(const std::vector<MessagePart>& parts) {
  size_t count = 0;
  for (const MessagePart& part : parts)
    if (has_ways_to_lie(part.shape.size())) count += part.shape.size();
  return static_cast<int64_t>(count);
}

}  // namespace

Inbox::Inbox(Transport& transport, int64_t first_tag, std::vector<Expected> order, int64_t ahead, Comes comes)
    : transport_(transport),
      first_tag_(first_tag),
      order_(std::move(order)),
      ahead_(static_cast<size_t>(ahead)),
      comes_(std::move(comes)) {
  PW_CHECK_LE(1, ahead);
  post_up_to(ahead_);
}

void Inbox::post_up_to(size_t count) {
  while (posted_.size() < count && next_ + posted_.size() < order_.size()) {
    if (comes_ && !comes_(next_ + posted_.size())) return;
    const Expected& expected = order_[next_ + posted_.size()];
    const int64_t numbers = count_of_numbers(*expected.parts);
    if (numbers > 0 && orders_.count(expected.peer) == 0 && announcements_.count(expected.peer) == 0)
      announcements_[expected.peer] =
          transport_.take({numbers}, at::TensorOptions(at::kLong), expected.peer,
                          first_tag_ + static_cast<int64_t>(expected.parts->size()));
    Posted posted;
    posted.peer = expected.peer;
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
  const std::vector<MemoryOrder>& orders = orders_of(posted_.front().peer, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = unflattened(tensors[i], orders.at(i));
  posted_.pop_front();
  ++next_;
  post_up_to(ahead_);
  return tensors;
}

const std::vector<MemoryOrder>& Inbox::orders_of(int64_t peer, const std::vector<at::Tensor>& tensors) {
  const auto [known, first] = orders_.try_emplace(peer);
  if (!first) return known->second;
  at::Tensor numbers;
  if (const auto announcement = announcements_.extract(peer)) numbers = announcement.mapped()->wait();
  int64_t next = 0;
  for (const at::Tensor& tensor : tensors) {
    MemoryOrder order(static_cast<size_t>(tensor.dim()));
    std::iota(order.begin(), order.end(), 0);
    if (has_ways_to_lie(order.size()))
      for (int64_t& dimension : order) dimension = numbers.const_data_ptr<int64_t>()[next++];
    known->second.push_back(std::move(order));
  }
  PW_CHECK_EQ(next, numbers.defined() ? numbers.numel() : 0);
  return known->second;
}

Outbox::Outbox(Transport& transport, int64_t first_tag, int64_t limit)
    : transport_(transport), first_tag_(first_tag), limit_(static_cast<size_t>(limit)) {
  PW_CHECK_LE(1, limit);
}

Outbox::~Outbox() = default;

void Outbox::send(int64_t peer, const std::vector<at::Tensor>& tensors) {
  if (under_way_.size() >= limit_) wait_for_oldest();
  std::vector<std::unique_ptr<Request>> requests;
  const auto [known, first] = orders_.try_emplace(peer);
  if (first) {
    for (const at::Tensor& tensor : tensors) known->second.push_back(memory_order(tensor));
    if (const auto numbers = to_numbers(known->second); !numbers.empty())
      requests.push_back(transport_.give(at::tensor(numbers, at::TensorOptions(at::kLong).device(at::kCPU)),
                                         peer, first_tag_ + static_cast<int64_t>(tensors.size())));
  }
  PW_CHECK_EQ(known->second.size(), tensors.size());
  std::vector<at::Tensor> messages;
  for (size_t i = 0; i < tensors.size(); ++i) {
    messages.push_back(flattened(tensors[i].detach(), known->second[i]));
    sent_bytes_ += static_cast<int64_t>(tensors[i].nbytes());
  }
  const Packer* const packer = transport_.packer(peer);
  if (packer != nullptr && Packer::packs(messages)) messages = {packer->pack(messages)};
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
