// How operators keep samples apart: a row each. What has no row is taken to mix them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/run/batch_relation.h"

namespace pipewright {

/// A tensor that a node reads: what it is to the samples, and its shape in minibatches of two sizes.
struct BatchOperand {
  std::string name;
  BatchRelation relation;
  std::vector<int64_t> whole, part;
  bool of_fields = false;  ///< known from the fields of a minibatch, without the model (values_of_fields)
  bool is_floating = true;
  int64_t rank() const { return static_cast<int64_t>(whole.size()); }
};

/// A call of an operator, as it stands in the graphs for minibatches of two sizes.
struct BatchCall {
  const Node& whole;
  const Node& part;
  int64_t samples, part_samples;
  std::function<BatchOperand(const std::string&)> operand_of;

  std::optional<BatchOperand> operand(const std::string& argument) const;
  /// Of a list; elements that are none are left out.
  std::vector<BatchOperand> operands(const std::string& argument) const;
  /// All, in the order of the arguments.
  std::vector<BatchOperand> operands() const;
  const Argument* argument(const std::string& name) const;
  std::optional<int64_t> integer(const std::string& name) const;
  /// One integer counts as a list of one.
  std::optional<std::vector<int64_t>> integers(const std::string& name) const;
  bool flag(const std::string& name, bool otherwise) const;
  BatchOperand output(size_t i = 0) const { return operand_of(whole.outputs.at(i)); }
  /// The name of an argument, no tensor, that is another in the other graph; "" if none is.
  std::string differing_literal() const;
};

/// By the shapes alone: rows where one dimension counts the samples, whole where none does, else nothing.
std::optional<BatchRelation> relation_of_shapes(const std::vector<int64_t>& whole,
                                                const std::vector<int64_t>& part, int64_t samples,
                                                int64_t part_samples);

/// Whether the node reads no numbers of its operands, only their shapes.
bool reads_shapes_only(const Node& node);

/// One relation for all outputs of the call, or one for each. kMixed says in `why` what the node does, as the
/// end of a sentence that begins with the node. An operand that is kMixed never gets here.
std::vector<BatchRelation> relations_of(const BatchCall& call);

}  // namespace pipewright
