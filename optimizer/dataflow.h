// The profile's nodes as a DAG by number: who reads what, and the sets that cuts are made of.
#pragma once

#include <boost/dynamic_bitset.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "optimizer/device_classes.h"

namespace pipewright {

/// Bit v is node v of the profile.
using NodeSet = boost::dynamic_bitset<uint64_t>;

struct DataflowValue {
  int64_t bytes = 0;
  int producer = 0;
  std::vector<int> readers;  ///< ascending, each once; the producer is smaller than all of them
};

/// Borrows the profile, which must be valid and outlive this.
struct Dataflow {
  explicit Dataflow(const Profile& profile, const ClassProfiles& classes = {});

  const Profile& profile;
  std::vector<DataflowValue> values;  ///< outputs of nodes only: graph inputs are loaded where they are read
  std::vector<std::vector<int>> predecessors;  ///< ascending, each once
  std::vector<std::vector<int>> successors;    ///< ascending, each once
  std::vector<NodeSet> ancestors;              ///< proper ones
  std::vector<std::vector<int>> values_made;   ///< by node: indices of `values`
  std::vector<std::vector<int>> values_read;   ///< by node: indices of `values`, each once
  /// Groups of two or more nodes that share a parameter, or that the profile has `together`: no cut may
  /// separate them.
  std::vector<NodeSet> tied;
  std::vector<int64_t> transient_bytes;  ///< by node: values read and made
  std::vector<int64_t> saved_bytes;      ///< by node
  /// False for a node all of whose parameters (at least one, by name) stand in earlier nodes: its bytes count
  /// there.
  std::vector<char> owns_parameters;
  std::vector<std::vector<PassSeconds>> class_seconds;  ///< seconds_by_class()
  std::vector<double> least_seconds;  ///< by node: forward and backward in its fastest class

  int size() const { return static_cast<int>(predecessors.size()); }
};

/// A name and the two nodes that share it, if some tied group is separated by `done`; "" otherwise.
std::string separated_tie(const Dataflow& flow, const NodeSet& done);

}  // namespace pipewright
