#include "runtime/weight_versions.h"

#include <algorithm>

#include "graph/error.h"
#include "models/memory_meter.h"

namespace pipewright {
namespace {

// Nobody else sees what is written to it.
bool unshared(const at::Tensor& tensor) {
  return tensor.defined() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

WeightVersions::WeightVersions(std::vector<at::Tensor> first, int64_t number) {
  for (const at::Tensor& weight : first) count_memory_as(weight, MemoryPurpose::kWeights);
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
  const bool over = latest_.use_count() == 1 && readers_.count(latest_->number) == 0 &&
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

std::shared_ptr<const WeightVersion> WeightVersions::read(int64_t number) {
  const auto expected = readers_.find(number);
  PW_CHECK(expected != readers_.end(), "no forward was to read version " << number);
  const bool last = --expected->second == 0;
  if (last) readers_.erase(expected);
  if (number == latest_->number) return latest_;
  const auto kept = kept_for_.find(number);
  PW_CHECK(kept != kept_for_.end(), "version " << number << " is not there; the latest is " << updates());
  std::shared_ptr<const WeightVersion> version = kept->second;
  if (last) kept_for_.erase(kept);
  return version;
}

void WeightVersions::publish(std::vector<at::Tensor> weights) {
  auto next = make(latest_->number + 1, std::move(weights));
  if (readers_.count(latest_->number) != 0) kept_for_.emplace(latest_->number, latest_);
  latest_ = std::move(next);
  // Versions take turns with their memory: what the only one has is that of the weights.
  if (books_->live == 1) {
    for (const at::Tensor& weight : latest_->weights) count_memory_as(weight, MemoryPurpose::kWeights);
  }
  // Counted after the old latest has gone, unless somebody holds it: while a step runs, the version it
  // makes is neither read nor stashed yet (docs/semantics.md).
  peak_live_ = std::max(peak_live_, books_->live);
}

}  // namespace pipewright
