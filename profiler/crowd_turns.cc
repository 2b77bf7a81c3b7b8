#include "profiler/crowd_turns.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/statistics.h"

namespace pipewright {
namespace {

constexpr size_t kLeastTurns = 3;
/// Of a core: what a machine that nobody uses does, and what ticks are wrong by in a short turn.
constexpr double kQuietCores = 0.1;
constexpr double kLongestInVain = 3;

constexpr double CrowdSeconds::*kFields[] = {
    &CrowdSeconds::compute_alone,         &CrowdSeconds::compute_beside,
    &CrowdSeconds::update_alone,          &CrowdSeconds::update_beside,
    &CrowdSeconds::replica_compute_alone, &CrowdSeconds::replica_compute_in_step,
    &CrowdSeconds::replica_update_alone,  &CrowdSeconds::replica_update_in_step,
    &CrowdSeconds::compute_by_turns,      &CrowdSeconds::clock_alone,
    &CrowdSeconds::clock_beside};

CrowdSeconds medians(const std::vector<const CrowdTurn*>& turns) {
  CrowdSeconds found;
  for (const auto field : kFields) {
    std::vector<double> values;
    for (const CrowdTurn* turn : turns)
      for (const CrowdSeconds& pass : turn->passes) values.push_back(pass.*field);
    found.*field = median(values);
  }
  return found;
}

}  // namespace

CrowdSeconds& CrowdSeconds::operator+=(const CrowdSeconds& other) {
  for (const auto field : kFields) this->*field += other.*field;
  return *this;
}

bool CrowdTurn::is_quiet() const { return other_cores.value_or(0) < kQuietCores; }

bool turns_go_on(const std::vector<CrowdTurn>& turns, double elapsed_seconds, double least_seconds) {
  if (turns.size() < kLeastTurns) return true;
  if (elapsed_seconds < least_seconds) return true;
  const auto quiet = std::count_if(turns.begin(), turns.end(), [](const auto& t) { return t.is_quiet(); });
  return quiet < static_cast<int64_t>(kLeastTurns) && elapsed_seconds < kLongestInVain * least_seconds;
}

CrowdFound judged(const std::vector<CrowdTurn>& turns) {
  PW_CHECK(!turns.empty(), "no turns");
  std::vector<const CrowdTurn*> all;
  for (const CrowdTurn& turn : turns) all.push_back(&turn);
  std::vector<const CrowdTurn*> taken = all;
  std::stable_sort(taken.begin(), taken.end(), [](const CrowdTurn* a, const CrowdTurn* b) {
    return a->other_cores.value_or(0) < b->other_cores.value_or(0);
  });
  while (taken.size() > kLeastTurns && !taken.back()->is_quiet()) taken.pop_back();

  CrowdFound found;
  found.seconds = medians(taken);
  // What the machine made of it is told by all of them.
  const CrowdSeconds of_all = medians(all);
  found.seconds.clock_alone = of_all.clock_alone;
  found.seconds.clock_beside = of_all.clock_beside;
  std::vector<double> references;
  for (const CrowdTurn* turn : taken) {
    found.other_cores += turn->other_cores.value_or(0) / static_cast<double>(taken.size());
    references.insert(references.end(), turn->references.begin(), turn->references.end());
  }
  if (references.empty()) return found;
  const auto [least, most] = std::minmax_element(references.begin(), references.end());
  if (*least > 0) found.reference_spread = *most / *least - 1;
  return found;
}

CrowdFound& CrowdFound::operator+=(const CrowdFound& other) {
  seconds += other.seconds;
  other_cores = std::max(other_cores, other.other_cores);
  reference_spread = std::max(reference_spread, other.reference_spread);
  return *this;
}

ProfiledCrowd CrowdFound::factors(int64_t ranks) const {
  const auto factor = [](double beside, double alone) {
    return alone > 0 ? std::max(1.0, beside / alone) : 1;
  };
  const CrowdSeconds& s = seconds;
  ProfiledCrowd crowd;
  crowd.ranks = ranks;
  crowd.compute_factor = factor(s.compute_beside, s.compute_alone);
  crowd.update_factor = factor(s.update_beside, s.update_alone);
  crowd.replicas_compute_factor = factor(s.replica_compute_in_step, s.replica_compute_alone);
  crowd.replicas_update_factor = factor(s.replica_update_in_step, s.replica_update_alone);
  crowd.by_turns_compute_factor = factor(s.compute_by_turns, s.compute_alone);
  crowd.clock_factor = factor(s.clock_beside, s.clock_alone);
  crowd.other_cores = other_cores;
  crowd.reference_spread = reference_spread;
  return crowd;
}

}  // namespace pipewright
