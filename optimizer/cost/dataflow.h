// The profile's nodes as a DAG by number: who reads what, and the sets that cuts are made of.
#pragma once

#include <boost/dynamic_bitset.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "optimizer/cost/device_classes.h"

namespace pipewright {

/// Bit v is node v of the profile.
using NodeSet = boost::dynamic_bitset<uint64_t>;

struct DataflowValue {
  int64_t bytes = 0;
  int producer = 0;
  std::vector<int> readers;       ///< ascending, each once; the producer is smaller than all of them
  int64_t saved_bytes = 0;        ///< of it, what its producer's saved bytes may have
  std::vector<int> keepers = {};  ///< ascending: whose backward needs its memory; none: not known
  int freed_at = 0;  ///< with this node's backward saved_bytes are free: first of keepers if it reads the
                     ///< value, or producer
};
/// Of a value that a stage makes and sends on: what is saved for the backward of none of `done`, the nodes up
/// to the end of that stage.
int64_t unkept_bytes(const DataflowValue& value, const NodeSet& done);

/// A value that a stage sends on: made by it, or passed through.
struct SentValue {
  int producer = 0;
  int last_reader = 0;
  int64_t bytes = 0;
  int64_t saved_bytes = 0;  ///< as DataflowValue
  int freed_at = 0;
};
/// Of a stage that ends with the nodes `done` (a down-set).
std::vector<SentValue> sent_values(const std::vector<DataflowValue>& values, const NodeSet& done);

/// Tied parameters that the same nodes read, two of them or more.
struct TiedGroup {
  std::vector<std::string> names;  ///< in the order in which the first reader names them
  std::vector<int> readers;        ///< ascending
  /// A profile says bytes by node: those of a reader that reads nothing else, else of the reader with fewest.
  int64_t parameter_bytes = 0;
  int64_t trainable_bytes = 0;
};
/// By their first reader.
std::vector<TiedGroup> tied_groups(const Profile& profile);

/// What a cut between the readers of a tied parameter is: not possible, or one with a copy on each side
/// (docs/semantics.md: where all stages update together).
enum class Ties { kTogether, kCopies };

/// What workspaces are made of, by node.
struct NodeBytes {
  /// Values that are there while it runs, or their gradients (made up to it, and read by it or later), and
  /// its own buffers.
  std::vector<int64_t> transient;
  std::vector<int64_t> freed;              ///< of what is saved: free again with its backward
  std::vector<int64_t> gradients;          ///< of parameters that no other node reads
  std::vector<int64_t> waiting_gradients;  ///< of what it makes, where it has such parameters
};

/// Borrows the profile, which must be valid and outlive this.
struct Dataflow {
  explicit Dataflow(const Profile& profile, const ClassProfiles& classes = {}, Ties ties = Ties::kTogether);

  const Profile& profile;
  std::vector<DataflowValue> values;  ///< outputs of nodes only: graph inputs are loaded where they are read
  std::vector<std::vector<int>> predecessors;  ///< ascending, each once
  std::vector<std::vector<int>> successors;    ///< ascending, each once
  std::vector<NodeSet> ancestors;              ///< proper ones
  std::vector<std::vector<int>> values_made;   ///< by node: indices of `values`
  std::vector<std::vector<int>> values_read;   ///< by node: indices of `values`, each once
  /// Groups of two or more nodes that the profile has `together` or, with Ties::kTogether, that share a
  /// parameter: no cut may separate them.
  std::vector<NodeSet> tied;
  std::vector<TiedGroup> ties;
  bool copies = false;  ///< Ties::kCopies
  NodeBytes bytes;
  /// By node. What no other node reads; with what `ties` hold, at the first reader.
  std::vector<int64_t> own_parameter_bytes;
  std::vector<int64_t> own_trainable_bytes;
  std::vector<int64_t> parameter_bytes;
  std::vector<int64_t> trainable_bytes;
  std::vector<std::vector<PassSeconds>> class_seconds;  ///< seconds_by_class()
  /// launched_factor() of the profile, at [0], and of the k-th class; empty without classes.
  std::vector<double> class_factors;
  /// The profile's device waits for the host that launches its kernels: stages that can be captured as graphs
  /// are (--cuda-graphs auto). Of the whole model: so a larger stage never takes less than a part of it.
  bool captures = false;
  std::vector<double> least_seconds;  ///< by node: forward and backward in its fastest class

  int size() const { return static_cast<int>(predecessors.size()); }

 private:
  void count_saved();
  void count_parameters();
  void count_values();
};

/// A name and the two nodes that share it, if some tied group is separated by `done`; "" otherwise.
std::string separated_tie(const Dataflow& flow, const NodeSet& done);

}  // namespace pipewright
