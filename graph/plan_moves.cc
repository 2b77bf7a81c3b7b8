#include "graph/plan_moves.h"

#include <algorithm>

namespace pipewright {

std::vector<PlanMove> plan_moves(const Holders& last, const Holders& next,
                                 const std::function<HeldThing(const std::string&)>& thing) {
  std::map<std::pair<int64_t, int64_t>, PlanMove> moves;
  std::map<int64_t, int64_t> sends_bytes;  // by rank
  for (const auto& [name, ranks] : next) {
    const std::vector<int64_t>& sources = last.at(name);
    const HeldThing held = thing(name);
    for (const int64_t to : ranks) {
      const auto end = held.equal_on_holders ? sources.end() : sources.begin() + 1;
      if (std::find(sources.begin(), end, to) != end) continue;
      const int64_t from = *std::min_element(sources.begin(), end, [&](int64_t a, int64_t b) {
        return std::pair(sends_bytes[a], a) < std::pair(sends_bytes[b], b);
      });
      sends_bytes[from] += held.bytes;
      PlanMove& move = moves[{from, to}];
      move.from = from;
      move.to = to;
      move.names.push_back(name);
      move.bytes += held.bytes;
    }
  }
  std::vector<PlanMove> list;
  for (auto& [ranks, move] : moves) list.push_back(std::move(move));
  return list;
}

double busiest_seconds(const std::vector<PlanMove>& moves,
                       const std::function<double(const PlanMove&)>& message_seconds) {
  std::map<int64_t, double> sends, receives;
  double busiest = 0;
  for (const PlanMove& move : moves) {
    const double seconds = message_seconds(move);
    busiest = std::max({busiest, sends[move.from] += seconds, receives[move.to] += seconds});
  }
  return busiest;
}

}  // namespace pipewright
