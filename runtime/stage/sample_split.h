// How the replicas of a plan's stages share a minibatch (`split`), in tensors: which samples each has, which
// of a neighbour's it needs, and along which dimension of a value samples are counted.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/sample_ranges.h"
#include "models/definition/model.h"
#include "runtime/transport/message.h"

namespace pipewright {

/// model.graph, frozen as the plan says it is, for minibatches of so many samples.
Graph graph_of_part(const Model& model, const Plan& plan, int64_t samples);

/// The way out of a plan with `split` that a model cannot follow.
inline constexpr const char* kTakeTurns =
    "Leave out `split` of the stage: its replicas then take whole minibatches in turns.";

/// PlanError unless the model can run on parts of a minibatch where the plan splits it: graphs of other sizes
/// can be made of it, and of a stage that splits what it sends and the buffers that it writes are of one
/// sample each, or the same whatever the part is (models/run/batch_analysis.h). What crosses to or from such
/// a stage has one dimension that counts samples (or none, and no gradient). Its loss: LossShares. `model` as
/// for graph_of_part(), and the plan fits it.
void check_split_model(const Model& model, const Plan& plan);

/// Along which dimension a value (an input too) counts samples in both graphs; SampleSplit::kWhole: along
/// none.
int64_t sample_dimension(const Graph& whole, const Graph& part, const std::string& value);

class SampleSplit {
 public:
  /// No dimension of a value counts samples: every part has all of it.
  static constexpr int64_t kWhole = -1;

  /// Arguments as check_split_model() takes them. Where the plan splits nothing, only any() and range_of()
  /// are asked.
  SampleSplit(const Model& model, const Plan& plan);

  bool any() const { return any_; }
  bool splits(int64_t stage) const { return ranges_[static_cast<size_t>(stage)].size() > 1; }
  int64_t samples() const { return samples_; }
  /// What a replica has of each minibatch that it takes part in.
  SampleRange range_of(int64_t stage, int64_t place) const;
  /// Of a value of the graph, also an input.
  int64_t dimension_of(const std::string& value) const;
  std::vector<int64_t> dimensions_of(const std::vector<std::string>& values) const;

  /// What a replica exchanges with a part of a neighbouring stage.
  struct Piece {
    static constexpr int64_t kInTurn = -1;
    int64_t place = kInTurn;  ///< whose; kInTurn: of a stage that does not split, whoever has the minibatch
    SampleRange samples;
  };
  /// By ascending samples: together the replica's own.
  std::vector<Piece> pieces(int64_t stage, int64_t place, int64_t other) const;

 private:
  bool any_ = false;
  int64_t samples_ = 0;
  std::vector<std::vector<SampleRange>> ranges_;  // by stage; one where it does not split
  std::map<std::string, int64_t> dimensions_;     // of values that count samples
};

/// The rows `samples` of a value that has the rows `of`; all of it where no dimension counts samples. A view.
at::Tensor rows_of(const at::Tensor& value, int64_t dimension, SampleRange of, SampleRange samples);
/// The value whose rows these are, one after the other: the only one as it is, of several a new tensor that
/// lies in memory as the first does. Where no dimension counts samples: the first.
at::Tensor joined(const std::vector<at::Tensor>& pieces, int64_t dimension);

}  // namespace pipewright
