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

CachedPrefix::CachedPrefix(std::shared_ptr<const PrefixCut> cut, SampleCache& cache, CacheSpace space,
                           PrefixSources sources, NextUses uses, std::optional<Shallower> shallower)
    : cut_(std::move(cut)),
      cache_(cache),
      space_(std::move(space)),
      sources_(std::move(sources)),
      uses_(std::move(uses)),
      shallower_(std::move(shallower)),
      refused_(cut_->obstacle()) {
  PW_CHECK(refused_.empty(), refused_);
  for (const std::string& name : cut_->behind().fields()) {
    const auto& values = cut_->values();
    if (std::find(values.begin(), values.end(), name) == values.end()) other_fields_.push_back(name);
  }
}

std::optional<CachedPrefix::Shallower> CachedPrefix::kept() const {
  if (!records_ || !refused_.empty()) return std::nullopt;
  return Shallower{cut_, space_, records_};
}

// All samples of the minibatch, or none.
std::optional<std::vector<at::Tensor>> CachedPrefix::fetch(int64_t k, const std::vector<int64_t>& samples,
                                                           const PrefixRecords& records,
                                                           const CacheSpace& space) {
  std::vector<std::byte> bytes(samples.size() * records.record_bytes());
  bool all = true;
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::span<std::byte> record(bytes.data() + i * records.record_bytes(), records.record_bytes());
    all = cache_.get(space.key(samples[i]), record, uses_.after(k, samples[i])) && all;
  }
  if (!all) return std::nullopt;
  return records.unpack(bytes);
}

void CachedPrefix::keep(int64_t k, const std::vector<int64_t>& samples,
                        const std::vector<at::Tensor>& values) {
  const std::vector<std::byte> bytes = records_->pack(values);
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::span<const std::byte> record(bytes.data() + i * records_->record_bytes(),
                                            records_->record_bytes());
    const CacheKey key = space_.key(samples[i]);
    const CacheUse use = uses_.after(k, samples[i]);
    if (shallower_) cache_.upgrade(shallower_->space.key(samples[i]), key, record, use);
    if (!shallower_) cache_.put(key, record, use);
  }
}

std::vector<at::Tensor> CachedPrefix::compute(int64_t k, const std::vector<int64_t>& samples,
                                              const std::vector<at::Tensor>& fields) {
  const auto [weights, buffers] = sources_.state();
  if (shallower_ && refused_.empty()) {
    if (auto before = fetch(k, samples, *shallower_->records, shallower_->space))
      return cut_->run_from(*shallower_->cut, *before, fields, weights, buffers);
  }
  return cut_->run(fields, weights, buffers);
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
  if (!refused_.empty()) return;
  bool whole = false;
  const double fetch_seconds = seconds_of([&] { whole = fetch(k, samples, *records_, space_).has_value(); });
  if (!whole) return;  // no room for a minibatch: what comes will tell
  const bool worth = worth_it.value_or(fetch_seconds < compute_seconds);
  const std::string numbers = "a minibatch: " + format_seconds(compute_seconds) + " to compute, " +
                              format_seconds(fetch_seconds) + " to fetch";
  if (!worth) refused_ = "fetching would not be faster; " + numbers;
  if (worth && sources_.log)
    sources_.log("cache: values of " + std::to_string(space_.layers) + " frozen layers are kept; " + numbers);
}

std::vector<at::Tensor> CachedPrefix::fields(int64_t k) {
  const std::vector<int64_t> samples = sources_.request(k).indices;
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> others;
  if (records_ && refused_.empty()) {
    if (auto fetched = fetch(k, samples, *records_, space_)) values = std::move(*fetched);
  }
  if (!values.empty()) {
    if (!other_fields_.empty()) others = sources_.load_some(k, other_fields_);
  } else {
    const std::vector<at::Tensor> all = sources_.load(k);
    const double compute_seconds = seconds_of([&] { values = compute(k, samples, all); });
    const bool first = !records_;
    if (first) records_ = std::make_shared<PrefixRecords>(values, space_.dtype);
    if (refused_.empty()) keep(k, samples, values);
    if (first && refused_.empty()) judge(k, samples, all, values, compute_seconds);
    if (first && !refused_.empty() && sources_.log) sources_.log("cache: not used: " + refused_);
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
