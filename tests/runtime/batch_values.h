// What an analysis says of every value of a graph, held against numbers.
#pragma once

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "models/initialise.h"
#include "models/run/batch_analysis.h"
#include "models/run/interpreter.h"
#include "models/run/storages.h"
#include "runtime/serial/reference.h"

namespace pipewright::testing {

inline std::vector<size_t> every_node(const Graph& graph) {
  std::vector<size_t> all(graph.nodes.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

/// All values that the nodes of `graph` make of `fields`.
inline std::map<std::string, at::Tensor> values_made(const Graph& graph, const Model& of,
                                                     const MinibatchFields& fields) {
  const Segment segment(graph, every_node(graph), graph.outputs);
  std::map<std::string, at::Tensor> made;
  NodeObserver observer;
  observer.made = [&](size_t i, size_t output, const at::Tensor& value) {
    if (value.defined()) made[graph.nodes[i].outputs.at(output)] = value.clone();
  };
  std::vector<at::Tensor> inputs, parameters, buffers;
  for (const auto& name : segment.inputs()) inputs.push_back(fields.at(name));
  for (const auto& name : segment.parameters()) parameters.push_back(initial_parameter(of, name, 0));
  for (const auto& name : segment.buffers()) buffers.push_back(initial_buffer(of, name));
  const at::NoGradGuard no_grad;
  segment.forward(inputs, parameters, buffers, {}, &observer);
  return made;
}

/// The places of samples [begin, end) of a value that has rows.
inline at::Tensor places_of(const at::Tensor& value, const BatchRelation& rows, int64_t begin, int64_t end) {
  std::vector<int64_t> sizes = value.sizes().vec();
  const auto at = sizes.begin() + rows.dimension;
  const int64_t samples = *at / (rows.outer * rows.inner);
  *at = rows.outer;
  sizes.insert(sizes.begin() + rows.dimension + 1, {samples, rows.inner});
  return value.reshape(sizes).narrow(rows.dimension + 1, begin, end - begin);
}

/// Counts the values of each kind that were compared. `graphs(n)`: the graph for n samples.
inline std::map<BatchRelation::Kind, int64_t> check_batch_values(const Model& model,
                                                                 const std::function<Graph(int64_t)>& graphs,
                                                                 const MinibatchFields& fields,
                                                                 int64_t samples, int64_t part,
                                                                 double tolerance) {
  using Kind = BatchRelation::Kind;
  const Graph whole = graphs(samples), first = graphs(part), second = graphs(samples - part);
  const BatchAnalysis found = analyse_batch(whole, first, every_node(whole));
  const Storages storages(whole);
  std::set<size_t> written;
  for (const auto& write : storages.writes()) written.insert(storages.class_of(write.tensor));
  MinibatchFields front, back;
  for (const auto& [name, field] : fields) {
    front[name] = field.narrow(0, 0, part).clone();
    back[name] = field.narrow(0, part, samples - part).clone();
  }
  const auto of_whole = values_made(whole, model, fields);
  const auto of_front = values_made(first, model, front), of_back = values_made(second, model, back);
  std::map<Kind, int64_t> counts;
  for (const auto& [name, value] : of_whole) {
    const BatchRelation& relation = found.values.at(name);
    if (written.count(storages.class_of(name)) > 0) continue;
    const at::Tensor& a = of_front.at(name);
    const at::Tensor& b = of_back.at(name);
    const auto same = [&](const at::Tensor& x, const at::Tensor& y) {
      return at::allclose(x.to(at::kDouble), y.to(at::kDouble), tolerance, tolerance, true);
    };
    CAPTURE(name, static_cast<int>(relation.kind), relation.dimension, relation.outer, relation.inner);
    if (relation.is(Kind::kWhole)) CHECK((same(value, a) && same(value, b)));
    if (relation.is(Kind::kRows)) {
      CHECK(same(places_of(value, relation, 0, part), places_of(a, relation, 0, part)));
      CHECK(same(places_of(value, relation, part, samples), places_of(b, relation, 0, samples - part)));
    }
    if (relation.is(Kind::kSum)) CHECK(same(value, a + b));
    const bool by_samples =
        relation.is(Kind::kAverage) && relation.denominator == Denominator{DenominatorFactor{}};
    if (by_samples) {
      const double share = static_cast<double>(part) / static_cast<double>(samples);
      CHECK(same(value, share * a + (1 - share) * b));
    }
    ++counts[relation.kind];
  }
  return counts;
}

}  // namespace pipewright::testing
