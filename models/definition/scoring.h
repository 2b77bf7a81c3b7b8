// What a model's loss compares with what, where it is a cross entropy: read from the graph's nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/graph.h"

namespace pipewright {

/// A cross entropy of the graph (cross_entropy_loss, or nll_loss of logarithms) whose targets are numbers of
/// classes.
struct Scoring {
  std::string scores;   ///< what it scores with: (positions, classes, ...), or (classes) of one position
  std::string targets;  ///< what it wants: int64, the same without classes
  int64_t classes = 0;
  int64_t ignored = -100;     ///< a target that asks nothing
  std::string class_weights;  ///< a value, parameter or buffer; "": all classes count the same
  bool smoothed = false;      ///< it smooths labels: its mean is not that of the targets' own surprise

  bool is_mean =
      true;  ///< of the targets that ask something, by class weights; else their sum, or one number each
  bool is_loss = false;  ///< it is the graph's loss, and not a part of it

  /// The dimension of the classes in graph.outputs[1], of which the scores are made (or both of the same
  /// value) without exchanging classes: by views, a part of the positions, softmax, factors. Nothing: the
  /// graph has no such output.
  std::optional<int64_t> dimension;
  /// The field that has the targets, none changed: by views, as a part, or padded. "": they are made
  /// otherwise.
  std::string labels;
  /// The targets are all of that field, one for each position of graph.outputs[1], in the same order.
  bool aligned = false;
  /// The targets are the words of a text: the model looks words up, and a sample has several targets in a
  /// row.
  bool is_text = false;
};

/// The cross entropy that scores what the graph hands out as scores (outputs[1]), the first of several; else,
/// without a `dimension`, the one that is the loss. Nothing where there is none: then no output says what the
/// classes are, and the loss is taken for a mean over the samples.
std::optional<Scoring> scoring_of(const Graph& graph);

/// The graph's loss is a sum over the samples, divided by nothing: that of a loss with reduction="sum", or
/// sum().
bool loss_is_sum(const Graph& graph);

}  // namespace pipewright
