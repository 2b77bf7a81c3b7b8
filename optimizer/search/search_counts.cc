// The search for an exact number of devices.
#include <algorithm>

#include "optimizer/search/search_stage.h"

namespace pipewright::search_detail {

std::optional<Solution> exactly_all_devices(const Problem& q, double period, bool least_period,
                                            std::optional<double> levels_of) {
  const States& states = *q.states;
  const int last = states.last();
  const int tables = q.replicated ? 2 : 1;
  using Row = std::vector<Suffix>;  // by number of devices
  std::vector<std::vector<Row>> best(tables, std::vector<Row>(states.size(), Row(q.devices + 1)));
  best[0][last][0].possible = true;

  for (int i = last - 1; i >= 0; --i) {
    const int64_t cut_bytes = states.states[i].cut_bytes;
    for (const int j : states.after(i)) {
      if (!stage_allowed(q, i, j)) continue;
      const StageLoad load = load_of(q, i, j);
      for (int64_t replicas = 1; replicas <= std::min(q.most_replicas, q.devices); ++replicas) {
        const bool anywhere = q.memory_bytes == 0 && !q.inputs.placed();
        const double unlimited = stage_period(load, replicas, q.inputs).total_seconds();
        if (!q.inputs.placed() && unlimited > period) continue;
        for (int64_t later = 0; later + replicas <= q.devices; ++later) {
          if (!best[0][j][later].possible) continue;
          const double mine = anywhere ? unlimited : fitted_period(q, load, replicas, later);
          if (mine == kNoLimit || mine > period) continue;
          for (int wanted = 0; wanted < tables; ++wanted) {
            for (int rest = wanted; rest >= 0; --rest) {
              const Suffix& after = best[rest][j][later];
              if (!after.possible || (wanted > rest && replicas < 2)) continue;
              Suffix found;
              found.possible = true;
              if (least_period) found.period_seconds = std::max(mine, after.period_seconds);
              if (levels_of) found.add_level(level_of(mine, *levels_of), after.levels);
              found.stages = after.stages + 1;
              found.bytes = after.bytes + cut_bytes;
              found.next = j;
              found.replicas = replicas;
              found.rest_replicated = rest == 1;
              found.rest_devices = later;
              Suffix& held = best[wanted][i][later + replicas];
              if (found.better_than(held)) held = std::move(found);
            }
          }
        }
      }
    }
  }

  int table = tables - 1;
  int64_t devices = q.devices;
  if (!best[table][0][devices].possible) return std::nullopt;
  Solution solution;
  for (int i = 0; i != last;) {
    const Suffix& suffix = best[table][i][devices];
    solution.stages.push_back({i, suffix.next, suffix.replicas});
    table = suffix.rest_replicated ? 1 : 0;
    devices = suffix.rest_devices;
    i = suffix.next;
  }
  finish(q, &solution);
  return solution;
}

}  // namespace pipewright::search_detail
