#include "runtime/stage/weight_versions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "models/run/weight_copies.h"
#include "runtime/update/ownership.h"

namespace pipewright {
namespace {

void count_as(MemoryPurpose purpose, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) count_memory_as(tensor, purpose);
}

// Of the weights `which`.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& weights, const std::vector<size_t>& which,
                                  MemoryPurpose purpose) {
  if (which.empty()) return {};
  const MemoryScope scope(purpose);
  std::vector<at::Tensor> copies(weights.size());
  for (const size_t i : which) copies[i] = room_for_copy(weights[i]);
  cast_to_copies(weights, copies);
  return copies;
}

// What nobody else holds of a version that dies.
void leave(std::vector<at::Tensor>& tensors, std::vector<at::Tensor>& places) {
  places.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    if (unshared(tensors[i])) places[i] = std::move(tensors[i]);
}

}  // namespace

WeightVersions::WeightVersions(std::vector<at::Tensor> first, int64_t number, std::vector<size_t> copied,
                               bool in_place)
    : copied_(std::move(copied)), in_place_(in_place) {
  count_as(MemoryPurpose::kWeights, first);
  auto copies = copies_of(first, copied_, MemoryPurpose::kWeights);
  latest_ = make(number, std::move(first), std::move(copies));
  peak_live_ = 1;
}

std::shared_ptr<WeightVersion> WeightVersions::make(int64_t number, std::vector<at::Tensor> weights,
                                                    std::vector<at::Tensor> copies) {
  ++books_->live;
  const auto bury = [books = books_](WeightVersion* version) {
    --books->live;
    if (!books->keeps_places) books->spare = {};
    leave(version->weights, books->spare.weights);
    leave(version->copies, books->spare.copies);
    delete version;
  };
  return std::shared_ptr<WeightVersion>(new WeightVersion{number, std::move(weights), std::move(copies)},
                                        bury);
}

WeightVersions::Room WeightVersions::room(const std::vector<size_t>& which) {
  const std::vector<at::Tensor>&latest = latest_->weights, &copies = latest_->copies;
  const auto has_copy = [&](size_t i) { return !copies.empty() && copies[i].defined(); };
  if (in_place_ && readers_.count(latest_->number) == 0) {
    // Autograd counts what is written to a tensor that it has saved, and refuses its backward. This is meant.
    // A copy is made of a weight, as what autocast would make of it in a forward: that stays.
    const MemoryScope scope(MemoryPurpose::kVersions);
    Room room;
    room.in_place = true;
    for (const size_t i : which) {
      room.weights.push_back(latest[i].variable_data());
      room.copies.push_back(has_copy(i) ? room_for_copy(latest[i]) : at::Tensor());
    }
    return room;
  }
  const bool over = latest_.use_count() == 1 && readers_.count(latest_->number) == 0 &&
                    std::all_of(which.begin(), which.end(), [&](size_t i) {
                      return unshared(latest[i]) && (!has_copy(i) || unshared(copies[i]));
                    });
  const auto place = [over](const std::vector<at::Tensor>& own, std::vector<at::Tensor>& spare, size_t i) {
    if (over) return own[i];
    if (i < spare.size() && unshared(spare[i])) return std::move(spare[i]);
    return at::Tensor();
  };
  const MemoryScope scope(MemoryPurpose::kVersions);
  Room room;
  for (const size_t i : which) {
    room.weights.push_back(place(latest, books_->spare.weights, i));
    room.copies.emplace_back();
    if (!has_copy(i)) continue;
    room.copies.back() = place(copies, books_->spare.copies, i);
    if (!room.copies.back().defined()) room.copies.back() = room_for_copy(latest[i]);
  }
  if (!(over && books_->keeps_places)) books_->spare = {};
  return room;
}

void WeightVersions::expect(std::map<int64_t, int64_t> readers,
                            std::map<int64_t, std::vector<at::Tensor>> older) {
  readers_ = std::move(readers);
  kept_for_.clear();
  for (auto& [number, weights] : older) {
    PW_CHECK_LT(number, latest_->number);
    if (readers_.count(number) == 0) continue;
    count_as(MemoryPurpose::kVersions, weights);
    auto copies = copies_of(weights, copied_, MemoryPurpose::kVersions);
    kept_for_[number] = make(number, std::move(weights), std::move(copies));
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
  count_as(MemoryPurpose::kWeights, weights);
  auto copies = copies_of(weights, copied_, MemoryPurpose::kWeights);
  latest_ = make(number, std::move(weights), std::move(copies));
  books_->spare = {};
}

void WeightVersions::publish(std::vector<at::Tensor> weights, std::vector<at::Tensor> copies) {
  auto next = make(latest_->number + 1, std::move(weights), std::move(copies));
  if (readers_.count(latest_->number) != 0) kept_for_.emplace(latest_->number, latest_);
  latest_ = std::move(next);
  // Versions take turns with their memory: what the only one has is that of the weights.
  if (books_->live == 1) {
    count_as(MemoryPurpose::kWeights, latest_->weights);
    count_as(MemoryPurpose::kWeights, latest_->copies);
  }
  // Counted after the old latest has gone, unless somebody holds it: while a step runs, the version it
  // makes is neither read nor stashed yet (docs/semantics.md).
  peak_live_ = std::max(peak_live_, books_->live);
}

void WeightVersions::publish_in_place(std::vector<at::Tensor> copies) {
  ++latest_->number;
  latest_->copies = std::move(copies);
}

void WeightVersions::bring_up_to_date(const WeightVersion& version) {
  PW_CHECK(in_place_, "a version that others read is not changed");
  if (version.number == latest_->number) return;
  for (size_t i = 0; i < version.weights.size(); ++i) {
    const at::Tensor &from = latest_->weights[i], &to = version.weights[i];
    if (!to.is_same(from)) to.variable_data().copy_(from.variable_data());
  }
  const_cast<WeightVersion&>(version).number = latest_->number;  // made by make()
}

void WeightVersions::show(const std::vector<size_t>& which, const Write& write) {
  PW_CHECK(in_place_, "a version that others read is not changed");
  const at::NoGradGuard no_grad;
  const MemoryScope scope(MemoryPurpose::kVersions);
  std::vector<at::Tensor> shown;
  for (const size_t i : which) shown.push_back(latest_->weights[i].variable_data());
  if (aside_.empty())
    for (const at::Tensor& weight : shown) aside_.push_back(at::empty_like(weight));
  for (size_t i = 0; i < shown.size(); ++i) aside_[i].copy_(shown[i]);
  write(aside_, shown);
  copies_aside_ = latest_->copies;
  for (size_t i = 0; i < which.size() && !latest_->copies.empty(); ++i) {
    at::Tensor& copy = latest_->copies[which[i]];
    if (!copy.defined()) continue;
    copy = room_for_copy(shown[i]);
    cast_to_copies({shown[i]}, {copy});
  }
  peak_live_ = std::max(peak_live_, books_->live + 1);
}

void WeightVersions::hide(const std::vector<size_t>& which) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < which.size(); ++i) latest_->weights[which[i]].variable_data().copy_(aside_[i]);
  latest_->copies = std::exchange(copies_aside_, {});
}

void WeightVersions::changed() { cast_to_copies(latest_->weights, latest_->copies); }

}  // namespace pipewright
