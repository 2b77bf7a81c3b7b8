// Where a model can be cut: down-sets of its DAG, with running sums, so that any stage's load is a
// difference.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/dataflow.h"

namespace pipewright {

/// The cut after the nodes of `done`. Sums are over `done`.
struct State {
  NodeSet done;
  double forward_seconds = 0;
  double backward_seconds = 0;
  PassSeconds launch = {}, gaps = {};     ///< as ProfiledNode's
  double least_seconds = 0;               ///< on whatever device each node is fastest
  std::vector<PassSeconds> classes = {};  ///< as StageLoad::classes
  int64_t parameter_bytes = 0;
  int64_t trainable_bytes = 0;
  int64_t buffer_bytes = 0;
  int64_t saved_bytes = 0;
  int64_t waiting_gradient_bytes = 0;
  int64_t cut_bytes = 0;               ///< what crosses
  int64_t held_bytes = 0;              ///< of what crosses, what its makers do not save
  double backward_weight_seconds = 0;  ///< of the backward
  bool frozen = false;                 ///< holds nodes of the frozen prefix alone
  std::vector<int> sent = {};          ///< of what crosses, the values of which is known who keeps them
};

/// Numbers of states, ascending: a stretch of all of them, or a list.
class StateNumbers {
 public:
  StateNumbers(int first, int end) : first_(first), count_(end - first) {}
  explicit StateNumbers(const std::vector<int>& list)
      : list_(list.data()), count_(static_cast<int>(list.size())) {}

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = int;
    using difference_type = int;
    using pointer = const int*;
    using reference = int;
    Iterator(const StateNumbers* numbers, int at) : numbers_(numbers), at_(at) {}
    int operator*() const { return (*numbers_)[at_]; }
    Iterator& operator++() { return ++at_, *this; }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    const StateNumbers* numbers_;
    int at_;
  };
  int size() const { return count_; }
  int operator[](int at) const { return list_ != nullptr ? list_[at] : first_ + at; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, count_}; }

 private:
  const int* list_ = nullptr;
  int first_ = 0;
  int count_ = 0;
};

/// Cuts in an order in which every set comes after its subsets: [0] is empty, back() holds all nodes. A stage
/// is a pair of states (i, j), i a proper subset of j: the nodes of j that are not in i. Every way of running
/// the model as a chain of stages is a path from [0] to back().
struct States {
  std::vector<State> states;
  /// Each state contains all before it, as those of a chain of nodes or of one order do. Then there are no
  /// lists.
  bool nested = false;
  bool captures = false;                    ///< Dataflow::captures
  std::vector<double> class_factors = {};   ///< likewise
  bool updates_together = false;            ///< all stages, as Ties::kCopies has it
  std::vector<std::vector<int>> supersets;  ///< by state, unless nested: what after() gives
  NodeBytes bytes;
  std::vector<DataflowValue> values;
  std::vector<TiedGroup> ties = {};  ///< that cuts may separate: sums count a group at its first reader,
                                     ///< load_between() wherever it is read
  /// False: there are too many cuts and these are some of them.
  bool exact = true;
  /// What workspace_between() has worked out, by pair of states. One thread plans.
  mutable std::vector<std::optional<StageWorkspace>> workspaces = {};

  int size() const { return static_cast<int>(states.size()); }
  int last() const { return size() - 1; }
  /// The larger states that contain state `i`, ascending.
  StateNumbers after(int i) const {
    return nested ? StateNumbers(i + 1, size()) : StateNumbers(supersets[i]);
  }
};

/// All cuts that do not separate tied parameters, if they are at most `most` or those of a chain. Cuts that
/// late and early nodes (free_nodes.h) make pointless are left out. Deterministic.
std::optional<States> all_states(const Dataflow& flow, bool memory_limited, int64_t most);
/// The same, or else cuts along one order, made depth first with small cuts.
States enumerate_states(const Dataflow& flow, bool memory_limited, int64_t most = 4096);

/// The given cuts (down-sets, in any order), less those that separate tied parameters, and both ends.
States states_of(const Dataflow& flow, std::vector<NodeSet> cuts);

/// Most stages that a chain of cuts can make.
int64_t longest_chain(const States& states);

/// The stage of the nodes that are in state j and not in its subset i; without its workspace, which takes a
/// walk over the nodes.
StageLoad load_between(const States& states, int i, int j);
/// With set_launched(): for prices.
StageLoad launched_between(const States& states, int i, int j);
StageWorkspace workspace_between(const States& states, int i, int j);
/// Its least_seconds alone.
double least_between(const States& states, int i, int j);

}  // namespace pipewright
