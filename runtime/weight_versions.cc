#include "runtime/weight_versions.h"

#include <algorithm>

namespace pipewright {
namespace {

// Nobody else sees what is written to it.
bool unshared(const at::Tensor& tensor) {
  return tensor.defined() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

WeightVersions::WeightVersions(std::vector<at::Tensor> first, int64_t number) {
  latest_ = make(number, std::move(first));
  peak_live_ = 1;
}

std::shared_ptr<const WeightVersion> WeightVersions::make(int64_t number, std::vector<at::Tensor> weights) {
  ++books_->live;
  return std::shared_ptr<const WeightVersion>(new WeightVersion{number, std::move(weights)},
                                              [books = books_](WeightVersion* version) {
                                                --books->live;
                                                for (at::Tensor& weight : version->weights) {
                                                  if (!unshared(weight)) weight.reset();
                                                }
                                                books->spare = std::move(version->weights);
                                                delete version;
                                              });
}

std::vector<at::Tensor> WeightVersions::room(const std::vector<size_t>& which) {
  const std::vector<at::Tensor>& latest = latest_->weights;
  const bool over = latest_.use_count() == 1 &&
                    std::all_of(which.begin(), which.end(), [&](size_t i) { return unshared(latest[i]); });
  std::vector<at::Tensor> room;
  for (const size_t i : which) {
    if (over) {
      room.push_back(latest[i]);
    } else if (i < books_->spare.size() && unshared(books_->spare[i])) {
      room.push_back(std::move(books_->spare[i]));
    } else {
      room.emplace_back();
    }
  }
  books_->spare.clear();
  return room;
}

void WeightVersions::publish(std::vector<at::Tensor> weights) {
  auto next = make(latest_->number + 1, std::move(weights));
  latest_ = std::move(next);
  // Counted after the old latest has gone, unless a minibatch holds it: while a step runs, the version it
  // makes is neither read nor stashed yet (docs/semantics.md).
  peak_live_ = std::max(peak_live_, books_->live);
}

}  // namespace pipewright
