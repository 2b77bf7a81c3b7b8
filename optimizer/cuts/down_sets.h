// All down-sets of a DAG: the sets of nodes that hold whatever comes before any of their nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/cuts/contraction.h"

namespace pipewright {

/// Each set but the first is an earlier one and a node more, so sums over sets are sums along that.
struct DownSets {
  std::vector<int> parent;      ///< of [0], the empty set, -1
  std::vector<int> added;       ///< of [0] -1
  std::vector<uint64_t> words;  ///< all sets, one behind the other
  int words_per_set = 1;

  int size() const { return static_cast<int>(parent.size()); }
  const uint64_t* set(int i) const { return words.data() + static_cast<size_t>(i) * words_per_set; }
  bool test(int i, int node) const { return (set(i)[node >> 6] >> (node & 63) & 1) != 0; }
  bool is_subset(int i, int j) const {
    const uint64_t* a = set(i);
    const uint64_t* b = set(j);
    for (int w = 0; w < words_per_set; ++w) {
      if ((a[w] & ~b[w]) != 0) return false;
    }
    return true;
  }
  NodeSet as_bits(int i, int nodes) const;
};

/// Each down-set once (it is reached by adding its nodes in ascending order, so none has to be looked up);
/// nothing if there are more than `most`. `base`: only those that hold it and lie within `limit`, both
/// down-sets; sets hold the nodes beyond `base`.
std::optional<DownSets> all_down_sets(const Contraction& graph, int64_t most);
std::optional<DownSets> down_sets_between(const Contraction& graph, const NodeSet& base, const NodeSet& limit,
                                          int64_t most);

}  // namespace pipewright
