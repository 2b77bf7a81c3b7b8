// Which samples of a minibatch each replica of a stage has that shares it (`split` of a plan): the only home
// of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

struct Plan;
struct Stage;
struct Graph;

/// Samples [begin, end) of a minibatch.
struct SampleRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const SampleRange&) const = default;
};

/// What both have; of size 0 if they have nothing in common.
SampleRange overlap(const SampleRange& a, const SampleRange& b);

/// One after the other, in proportion to the weights: with W the sum of all and w that of the weights before
/// it, a range begins at floor(samples * w / W). Weights are positive; no weights: one range of all samples.
std::vector<SampleRange> sample_ranges(int64_t samples, const std::vector<int64_t>& weights);

/// What the replica with most of a minibatch has of it: 1 where they take whole ones.
double largest_part(const Stage& stage);

/// PlanError for stages with `split` that cannot work: replicas without a sample, operators whose result for
/// a sample depends on the others (batch norm in training), a graph without samples. Of a plan that covers
/// the graph.
void check_split_stages(const Plan& plan, const Graph& graph);

}  // namespace pipewright
