#include "runtime/stage/weight_versions.h"

#include <algorithm>

#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "runtime/update/ownership.h"

namespace pipewright {

WeightVersions::WeightVersions(std::vector<at::Tensor> first, int64_t number) {
  for (const at::Tensor& weight : first) count_memory_as(weight, MemoryPurpose::kWeights);
  latest_ = make(number, std::move(first));
  peak_live_ = 1;
}

std::shared_ptr<const WeightVersion> WeightVersions::make(int64_t number, std::vector<at::Tensor> weights) {
  ++books_->live;
  const auto bury = [books = books_](WeightVersion* version) {
    --books->live;
    if (!books->keeps_places) books->spare.clear();
    books->spare.resize(version->weights.size());
    for (size_t i = 0; i < version->weights.size(); ++i)
      if (unshared(version->weights[i])) books->spare[i] = std::move(version->weights[i]);
    delete version;
  };
  return std::shared_ptr<const WeightVersion>(new WeightVersion{number, std::move(weights)}, bury);
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
  if (!(over && books_->keeps_places)) books_->spare.clear();
  return room;
}

void WeightVersions::expect(std::map<int64_t, int64_t> readers,
                            std::map<int64_t, std::vector<at::Tensor>> older) {
  readers_ = std::move(readers);
  kept_for_.clear();
  for (auto& [number, weights] : older) {
    PW_CHECK_LT(number, latest_->number);
    if (readers_.count(number) == 0) continue;
    for (const at::Tensor& weight : weights) count_memory_as(weight, MemoryPurpose::kVersions);
    kept_for_[number] = make(number, std::move(weights));
  }
  peak_live_ = std::max(peak_live_, books_->live);
}

std::shared_ptr<const WeightVersion> WeightVersions::find(int64_t number) const {
  if (number == latest_->number) return latest_;
  const auto kept = kept_for_.find(number);
  return kept == kept_for_.end() ? nullptr : kept->second;
}

std::shared_ptr<const WeightVersion> WeightVersions::read(int64_t number) {
  const auto expected = readers_.find(number);
  PW_CHECK(expected != readers_.end(), "no forward was to read version " << number);
  const bool last = --expected->second == 0;
  if (last) readers_.erase(expected);
  std::shared_ptr<const WeightVersion> version = find(number);
  PW_CHECK(version, "version " << number << " is not there; the latest is " << updates());
  if (last) kept_for_.erase(number);
  return version;
}

void WeightVersions::replace(std::vector<at::Tensor> weights, int64_t number) {
  readers_.clear();
  kept_for_.clear();
  for (const at::Tensor& weight : weights) count_memory_as(weight, MemoryPurpose::kWeights);
  latest_ = make(number, std::move(weights));
  books_->spare.clear();
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
