#include "optimizer/plan/candidate.h"

namespace pipewright {

std::vector<int64_t> Candidate::key(const std::vector<TopologyLevel>& levels) const {
  std::vector<int64_t> key;
  for (const FoundStage& stage : stages) {
    key.push_back(stage.to);
    key.push_back(stage.replicas);
  }
  for (const std::vector<int64_t>& stage : in_order_met(ranks(), levels))
    key.insert(key.end(), stage.begin(), stage.end());
  if (!room)
    for (const FoundStage& stage : stages) key.push_back(stage.recompute ? 1 : 0);
  return key;
}

std::vector<Candidate> in_every_layout(const Question& question, const Shape& shape) {
  Candidate candidate;
  for (size_t s = 0; s < shape.replicas.size(); ++s)
    candidate.stages.push_back({shape.cuts[s], shape.cuts[s + 1], shape.replicas[s]});
  if (!candidate.allowed_by(question)) return {};
  if (question.inputs.levels.empty()) return {candidate};
  std::vector<Candidate> all;
  for (const Ranks& ranks : layouts(shape.replicas, question.inputs.levels))
    all.push_back({candidate.placed_on(ranks)});
  return all;
}

}  // namespace pipewright
