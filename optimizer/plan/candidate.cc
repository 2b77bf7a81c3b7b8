#include "optimizer/plan/candidate.h"

#include "optimizer/search/stage_places.h"

namespace pipewright {

int64_t Candidate::devices() const {
  int64_t all = 0;
  for (const FoundStage& stage : stages) all += stage.replicas;
  return all;
}

Ranks Candidate::ranks() const {
  Ranks all;
  for (const FoundStage& stage : stages) all.push_back(stage.ranks);
  return all;
}

Candidate Candidate::placed_on(const Ranks& ranks) const {
  Candidate placed = *this;
  for (size_t s = 0; s < ranks.size(); ++s) placed.stages[s].ranks = ranks[s];
  return placed;
}

std::vector<int64_t> Candidate::key(const std::vector<TopologyLevel>& levels) const {
  std::vector<int64_t> key;
  for (const FoundStage& stage : stages) {
    key.push_back(stage.to);
    key.push_back(stage.replicas);
  }
  for (const std::vector<int64_t>& stage : in_order_met(ranks(), levels))
    key.insert(key.end(), stage.begin(), stage.end());
  if (room == Room::kGiven)
    for (const FoundStage& stage : stages) key.push_back(stage.recompute ? 1 : 0);
  return key;
}

namespace {

bool obey(const std::vector<FoundStage>& stages, const StagePlaces& places) {
  int64_t place = 0;
  for (const FoundStage& stage : stages) {
    if (place >= places.count() || !places.begins(place, stage.from)) return false;
    const int64_t replicas = places.replicas(place);
    if (replicas != 0 && stage.replicas != replicas) return false;
    place = places.next(place);
  }
  return places.ends(place) && places.begins(place, stages.back().to);
}

}  // namespace

bool Candidate::allowed_by(const Question& q) const {
  if (static_cast<int64_t>(stages.size()) < q.least_stages || devices() > q.devices) return false;
  if (q.all_devices && devices() != q.devices) return false;
  bool replicated = false;
  for (const FoundStage& stage : stages) {
    if (stage.replicas < 1 || stage.replicas > q.most_replicas) return false;
    replicated = replicated || stage.replicas > 1;
  }
  if (q.places != nullptr && !obey(stages, *q.places)) return false;
  return replicated || !q.replicated;
}

std::vector<Candidate> in_every_layout(const Question& question, const Shape& shape) {
  Candidate candidate;
  for (size_t s = 0; s < shape.replicas.size(); ++s)
    candidate.stages.push_back({shape.cuts[s], shape.cuts[s + 1], shape.replicas[s]});
  if (!candidate.allowed_by(question)) return {};
  if (question.inputs.levels.empty()) return {candidate};
  std::vector<Candidate> all;
  for (const Ranks& ranks : layouts(shape.replicas, question.inputs.levels))
    all.push_back(candidate.placed_on(ranks));
  return all;
}

}  // namespace pipewright
