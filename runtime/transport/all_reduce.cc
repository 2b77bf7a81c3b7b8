#include "runtime/transport/all_reduce.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "graph/error.h"

namespace pipewright {

int64_t all_reduce_sum(Transport& transport, const std::vector<int64_t>& ranks, int64_t first_tag,
                       const at::Tensor& flat) {
  const auto replicas = static_cast<int64_t>(ranks.size());
  const auto self = std::find(ranks.begin(), ranks.end(), transport.rank()) - ranks.begin();
  PW_CHECK_LT(self, replicas);
  PW_CHECK_EQ(flat.dim(), 1);
  if (replicas == 1 || flat.numel() == 0) return 0;
  if (transport.sum(flat, ranks, first_tag)) {
    return static_cast<int64_t>(flat.nbytes()) * 2 * (replicas - 1) / replicas;
  }

  // Part q of the tensor: parts differ by at most one element; with fewer elements than replicas some are
  // empty.
  const int64_t elements = flat.numel();
  const auto part = [&](const at::Tensor& tensor, int64_t q) {
    const int64_t begin = elements * q / replicas;
    return tensor.narrow(0, begin, elements * (q + 1) / replicas - begin);
  };
  const int64_t scatter_tag = first_tag;
  const int64_t gather_tag = first_tag + 1;
  std::vector<std::unique_ptr<Request>> sends;
  std::vector<std::unique_ptr<Request>> gathers(ranks.size());
  std::vector<std::unique_ptr<Request>> contributions(ranks.size());
  std::vector<at::Tensor> addends(ranks.size());
  int64_t sent_bytes = 0;
  const auto send = [&](const at::Tensor& tensor, int64_t q, int64_t tag) {
    if (tensor.numel() == 0) return;
    sent_bytes += static_cast<int64_t>(tensor.nbytes());
    sends.push_back(transport.send(tensor, ranks[static_cast<size_t>(q)], tag));
  };

  // Round 1, reduce-scatter: my part of everybody's tensor comes here; theirs of mine go out.
  const at::Tensor mine = part(flat, self);
  for (int64_t q = 0; q < replicas; ++q) {
    const auto i = static_cast<size_t>(q);
    if (q == self) {
      addends[i] = mine;
    } else if (mine.numel() > 0) {
      addends[i] = at::empty_like(mine);
      contributions[i] = transport.receive(addends[i], ranks[i], scatter_tag);
    }
  }
  for (int64_t q = 0; q < replicas; ++q) {
    if (q != self) send(part(flat, q), q, scatter_tag);
  }
  if (mine.numel() > 0) {
    // In the order of ranks, in the first of them, which nobody else reads; the last addition puts the sum
    // where it belongs.
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (contributions[i]) contributions[i]->wait();
      if (i == 0) continue;
      at::Tensor into = i + 1 == ranks.size() ? mine : addends[0];
      at::add_out(into, addends[0], addends[i]);
    }
  }
  // The other parts of `flat` may be overwritten only when their old contents have been taken.
  for (const auto& request : sends) request->wait();
  sends.clear();

  // Round 2, all-gather: the sums go to everybody.
  for (int64_t q = 0; q < replicas; ++q) {
    const at::Tensor into = part(flat, q);
    if (q != self && into.numel() > 0) {
      gathers[static_cast<size_t>(q)] = transport.receive(into, ranks[static_cast<size_t>(q)], gather_tag);
    }
  }
  for (int64_t q = 0; q < replicas; ++q) {
    if (q != self) send(mine, q, gather_tag);
  }
  for (const auto& request : gathers) {
    if (request) request->wait();
  }
  for (const auto& request : sends) request->wait();
  return sent_bytes;
}

}  // namespace pipewright
