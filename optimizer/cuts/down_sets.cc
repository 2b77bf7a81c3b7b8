#include "optimizer/cuts/down_sets.h"

#include <algorithm>

namespace pipewright {

NodeSet DownSets::as_bits(int i, int nodes) const {
  NodeSet bits(nodes);
  for (int v = 0; v < nodes; ++v) bits.set(v, test(i, v));
  return bits;
}

std::optional<DownSets> down_sets_between(const Contraction& graph, const NodeSet& base, const NodeSet& limit,
                                          int64_t most) {
  const int nodes = graph.size();
  DownSets sets;
  sets.words_per_set = std::max(1, (nodes + 63) / 64);
  const auto width = static_cast<size_t>(sets.words_per_set);
  const auto ready = [&](const uint64_t* done, int v) {
    if (!limit.test(v)) return false;
    for (const int p : graph.previous[v]) {
      if (!base.test(p) && (done[p >> 6] >> (p & 63) & 1) == 0) return false;
    }
    return true;
  };

  struct Open {
    int set;
    std::vector<int> candidates;  // larger than all nodes of the set, ascending
  };
  sets.parent = {-1};
  sets.added = {-1};
  sets.words.assign(width, 0);
  std::vector<Open> open(1);
  open[0].set = 0;
  for (int v = 0; v < nodes; ++v) {
    if (!base.test(v) && ready(sets.words.data(), v)) open[0].candidates.push_back(v);
  }
  while (!open.empty()) {
    const Open here = std::move(open.back());
    open.pop_back();
    for (size_t c = 0; c < here.candidates.size(); ++c) {
      if (sets.size() >= most) return std::nullopt;
      const int v = here.candidates[c];
      const int made = sets.size();
      sets.parent.push_back(here.set);
      sets.added.push_back(v);
      sets.words.resize(sets.words.size() + width);
      uint64_t* const done = sets.words.data() + static_cast<size_t>(made) * width;
      std::copy_n(sets.set(here.set), width, done);
      done[v >> 6] |= uint64_t{1} << (v & 63);
      Open grown;
      grown.set = made;
      grown.candidates.assign(here.candidates.begin() + static_cast<std::ptrdiff_t>(c) + 1,
                              here.candidates.end());
      for (const int after : graph.next[v]) {
        if (ready(done, after)) grown.candidates.push_back(after);
      }
      std::sort(grown.candidates.begin(), grown.candidates.end());
      if (!grown.candidates.empty()) open.push_back(std::move(grown));
    }
  }
  return sets;
}

std::optional<DownSets> all_down_sets(const Contraction& graph, int64_t most) {
  const NodeSet none(graph.size());
  return down_sets_between(graph, none, ~none, most);
}

}  // namespace pipewright
