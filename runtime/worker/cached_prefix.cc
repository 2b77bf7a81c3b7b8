#include "runtime/worker/cached_prefix.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <chrono>

#include "graph/error.h"
#include "graph/units.h"

namespace pipewright {
namespace {

double seconds_of(const std::function<void()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of one and the same numbers, computed in another place of the batch.
bool alike(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_floating_point()) return at::equal(a, b);
  const double large = a.numel() == 0 ? 0 : a.to(at::kDouble).abs().max().item<double>();
  return at::allclose(a.to(at::kDouble), b.to(at::kDouble), 1e-2, 1e-3 * large, /*equal_nan=*/true);
}

}  // namespace

NextUses::NextUses(std::function<LoadRequest(int64_t)> request, int64_t minibatches_per_epoch,
                   int64_t samples)
    : request_(std::move(request)),
      minibatches_per_epoch_(minibatches_per_epoch),
      next_(static_cast<size_t>(samples)) {}

CacheUse NextUses::after(int64_t k, int64_t sample) {
  const int64_t epoch = k / minibatches_per_epoch_ + 1;
  if (epoch != epoch_) {
    const int64_t first = epoch * minibatches_per_epoch_;
    std::fill(next_.begin(), next_.end(), first + minibatches_per_epoch_);
    for (int64_t m = first; m < first + minibatches_per_epoch_; ++m)
      for (const int64_t index : request_(m).indices) next_.at(static_cast<size_t>(index)) = m;
    epoch_ = epoch;
  }
  // Other replicas are not far behind: an epoch is enough.
  return {next_.at(static_cast<size_t>(sample)), k - minibatches_per_epoch_};
}

PrefixFigures& PrefixFigures::operator+=(const PrefixFigures& other) {
  fetched += other.fetched;
  deepened += other.deepened;
  computed += other.computed;
  fetch_seconds += other.fetch_seconds;
  compute_seconds += other.compute_seconds;
  return *this;
}

CachedPrefix::CachedPrefix(std::shared_ptr<const PrefixCut> cut, SampleCache& cache, CacheSpace space,
                           PrefixSources sources, NextUses uses, std::vector<Shallower> shallower)
    : cut_(std::move(cut)),
      cache_(cache),
      space_(std::move(space)),
      sources_(std::move(sources)),
      uses_(std::move(uses)),
      shallower_(std::move(shallower)) {
  PW_CHECK(cut_->obstacle().empty(), cut_->obstacle());
  for (const std::string& name : cut_->behind().fields()) {
    const auto& values = cut_->values();
    if (std::find(values.begin(), values.end(), name) == values.end()) other_fields_.push_back(name);
  }
}

std::vector<std::byte> CachedPrefix::fetch(int64_t k, const std::vector<int64_t>& samples,
                                           const PrefixRecords& records, const CacheSpace& space) {
  std::vector<std::byte> bytes(samples.size() * records.record_bytes());
  bool all = true;
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::span<std::byte> record(bytes.data() + i * records.record_bytes(), records.record_bytes());
    all = cache_.get(space.key(samples[i]), record, uses_.after(k, samples[i])) && all;
  }
  if (!all) bytes.clear();
  return bytes;
}

void CachedPrefix::keep(int64_t k, const std::vector<int64_t>& samples,
                        const std::vector<at::Tensor>& values) {
  const std::vector<std::byte> bytes = records_->pack(values);
  std::vector<CacheKey> before(shallower_.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::span<const std::byte> record(bytes.data() + i * records_->record_bytes(),
                                            records_->record_bytes());
    for (size_t s = 0; s < shallower_.size(); ++s) before[s] = shallower_[s].space.key(samples[i]);
    cache_.upgrade(before, space_.key(samples[i]), record, uses_.after(k, samples[i]));
  }
}

std::vector<at::Tensor> CachedPrefix::compute(int64_t k, const std::vector<int64_t>& samples,
                                              const std::vector<at::Tensor>& fields) {
  const auto [weights, buffers] = sources_.state();
  for (size_t s = 0; keeps() && s < shallower_.size(); ++s) {
    const auto before = fetch(k, samples, of_shallower_[s], shallower_[s].space);
    if (before.empty()) continue;
    figures_.deepened += static_cast<int64_t>(samples.size());
    return cut_->run_from(*shallower_[s].cut, of_shallower_[s].unpack(before), fields, weights, buffers);
  }
  figures_.computed += static_cast<int64_t>(samples.size());
  return cut_->run(fields, weights, buffers);
}

// Of the first minibatch, from the beginning, so that it is known how long that takes.
std::vector<at::Tensor> CachedPrefix::first_values(int64_t k, const std::vector<int64_t>& samples,
                                                   const std::vector<at::Tensor>& fields) {
  std::vector<at::Tensor> values;
  const double seconds = seconds_of([&] { values = compute(k, samples, fields); });
  figures_.compute_seconds += seconds;
  records_ = std::make_unique<PrefixRecords>(values, space_.dtype);
  keep(k, samples, values);
  judge(k, samples, fields, values, seconds);
  if (!refused_.empty() && sources_.log) sources_.log("cache: not used: " + refused_);
  const auto [weights, buffers] = sources_.state();
  for (size_t s = 0; keeps() && s < shallower_.size(); ++s)
    of_shallower_.emplace_back(shallower_[s].cut->run(fields, weights, buffers), space_.dtype);
  return values;
}

void CachedPrefix::judge(int64_t k, const std::vector<int64_t>& samples,
                         const std::vector<at::Tensor>& fields, const std::vector<at::Tensor>& values,
                         double compute_seconds) {
  const auto [weights, buffers] = sources_.state();
  // Half of the samples, twice each, and none where it was.
  at::Tensor other_order = at::empty({static_cast<int64_t>(samples.size())}, at::kLong);
  for (int64_t i = 0; i < other_order.size(0); ++i)
    other_order.data_ptr<int64_t>()[i] = (other_order.size(0) - 1 - i) / 2;
  const auto reordered = [&](const at::Tensor& tensor) {
    return at::index_select(tensor, 0, other_order.to(tensor.device()));
  };
  std::vector<at::Tensor> others;
  for (const at::Tensor& field : fields) others.push_back(reordered(field));
  const std::vector<at::Tensor> again = cut_->run(others, weights, buffers);
  for (size_t v = 0; v < values.size(); ++v) {
    if (alike(reordered(values[v]), again[v])) continue;
    refused_ = "'" + cut_->values()[v] + "', which leaves the frozen layers, depends on more than its sample";
  }
  if (!refused_.empty() && sources_.impure) sources_.impure(refused_);
  if (!refused_.empty()) return;
  bool whole = false;
  const double fetch_seconds = seconds_of([&] {
    const auto records = fetch(k, samples, *records_, space_);
    whole = !records.empty();
    if (whole) records_->unpack(records);
  });
  if (!whole) return;  // no room for a minibatch: what comes will tell
  const bool worth = worth_it.value_or(fetch_seconds < compute_seconds);
  const std::string numbers = "a minibatch: " + format_seconds(compute_seconds) + " to compute, " +
                              format_seconds(fetch_seconds) + " to fetch";
  if (!worth) refused_ = "fetching would not be faster; " + numbers;
  if (worth && sources_.log)
    sources_.log("cache: values of " + std::to_string(space_.layers) + " frozen layers are kept; " + numbers);
}

CachedPrefix::Found CachedPrefix::look_up(int64_t k) {
  Found found;
  if (keeps()) {
    const auto samples = sources_.request(k).indices;
    figures_.fetch_seconds += seconds_of([&] { found.records = fetch(k, samples, *records_, space_); });
  }
  if (found.records.empty()) {
    found.fields = sources_.load(k, cut_->whole_fields());
  } else if (!other_fields_.empty()) {
    found.fields = sources_.load(k, other_fields_);
  }
  return found;
}

std::vector<at::Tensor> CachedPrefix::fields(int64_t k, Found found) {
  const std::vector<int64_t> samples = sources_.request(k).indices;
  std::vector<at::Tensor> values, others;
  if (sources_.make && !found.fields.empty())
    sources_.make(found.records.empty() ? cut_->whole_fields() : other_fields_, found.fields);
  if (!found.records.empty()) {
    figures_.fetched += static_cast<int64_t>(samples.size());
    figures_.fetch_seconds += seconds_of([&] { values = records_->unpack(found.records); });
    others = std::move(found.fields);
  } else {
    std::vector<at::Tensor> all;
    for (const at::Tensor& field : found.fields) all.push_back(field.to(cut_->device()));
    if (!records_) {
      values = first_values(k, samples, all);
    } else {
      figures_.compute_seconds += seconds_of([&] { values = compute(k, samples, all); });
      if (keeps()) keep(k, samples, values);
    }
    others = cut_->other_fields(all, other_fields_);
  }
  std::vector<at::Tensor> result;
  for (const std::string& name : cut_->behind().fields()) {
    const auto value = std::find(cut_->values().begin(), cut_->values().end(), name);
    if (value != cut_->values().end()) {
      result.push_back(values[static_cast<size_t>(value - cut_->values().begin())]);
    } else {
      const auto other = std::find(other_fields_.begin(), other_fields_.end(), name);
      result.push_back(others[static_cast<size_t>(other - other_fields_.begin())]);
    }
  }
  return result;
}

}  // namespace pipewright
