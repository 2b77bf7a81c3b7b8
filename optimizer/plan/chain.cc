#include "optimizer/plan/chain.h"

#include <algorithm>

#include "optimizer/search/stage_places.h"

namespace pipewright {
namespace {

bool keep_places(const std::vector<FoundStage>& stages, const StagePlaces& places) {
  int64_t place = 0;
  for (const FoundStage& stage : stages) {
    if (place >= places.count() || !places.begins(place, stage.from)) return false;
    const int64_t replicas = places.replicas(place);
    if (replicas != 0 && stage.replicas != replicas) return false;
    place = places.next(place);
  }
  return places.ends(place) && places.begins(place, stages.back().to);
}

/// The lowest device of the same kind.
int64_t kind_of(const CostInputs& inputs, int64_t device) {
  int64_t kind = 0;
  while (!same_kind(inputs, kind, device)) ++kind;
  return kind;
}

}  // namespace

int64_t Chain::devices() const {
  int64_t all = 0;
  for (const FoundStage& stage : stages) all += stage.replicas;
  return all;
}

Ranks Chain::ranks() const {
  Ranks all;
  for (const FoundStage& stage : stages) all.push_back(stage.ranks);
  return all;
}

Chain Chain::placed_on(const Ranks& ranks) const {
  Chain placed = *this;
  for (size_t s = 0; s < ranks.size(); ++s) placed.stages[s].ranks = ranks[s];
  return placed;
}

bool Chain::allowed_by(const Question& q) const {
  if (static_cast<int64_t>(stages.size()) < q.least_stages || devices() > q.devices) return false;
  if ((q.all_devices || q.single_stage) && devices() != q.devices) return false;
  if (q.single_stage && stages.size() > 1) return false;
  bool replicated = false;
  for (const FoundStage& stage : stages) {
    if (stage.replicas < 1 || stage.replicas > q.most_replicas) return false;
    replicated = replicated || stage.replicas > 1;
  }
  // What stays idle comes last.
  const int64_t used = devices();
  for (const FoundStage& stage : stages)
    if (std::any_of(stage.ranks.begin(), stage.ranks.end(), [&](int64_t rank) { return rank >= used; }))
      return false;
  if (q.places != nullptr && !keep_places(stages, *q.places)) return false;
  return replicated || !q.replicated;
}

std::vector<int64_t> key_of(const Chain& chain, const Question& q) {
  std::vector<int64_t> key;
  key.reserve(4 * chain.stages.size() + static_cast<size_t>(chain.devices()));
  for (const FoundStage& stage : chain.stages) {
    key.push_back(stage.to);
    key.push_back(stage.replicas);
    if (q.memory_bytes > 0 || !q.inputs.memories.empty()) key.push_back(stage.recompute ? 1 : 0);
  }
  if (chain.stages[0].ranks.empty()) return key;
  const bool differ = devices_differ(q.inputs);
  const bool alike_anywhere = q.inputs.levels.size() < 2;
  const Ranks ranks = differ ? chain.ranks() : in_order_met(chain.ranks(), q.inputs.levels);
  for (const std::vector<int64_t>& stage : ranks) {
    const size_t begin = key.size();
    for (const int64_t rank : stage) key.push_back(differ && alike_anywhere ? kind_of(q.inputs, rank) : rank);
    if (differ) std::sort(key.begin() + static_cast<std::ptrdiff_t>(begin), key.end());
  }
  return key;
}

bool devices_differ(const CostInputs& inputs) { return !inputs.speeds.empty() || !inputs.memories.empty(); }

bool same_kind(const CostInputs& inputs, int64_t a, int64_t b) {
  const auto same = [&](const auto& values) {
    return values.empty() || values[static_cast<size_t>(a)] == values[static_cast<size_t>(b)];
  };
  return same(inputs.speeds) && same(inputs.classes) && same(inputs.memories);
}

}  // namespace pipewright
