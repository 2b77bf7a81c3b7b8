// The table of suffixes for one order of the devices: all labels worth keeping, by cut and place. For the
// search's own files; search_levels.h says what a label is.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/search/labels.h"
#include "optimizer/search/placement.h"
#include "optimizer/search/reach.h"
#include "optimizer/search/stage_places.h"

namespace pipewright::search_detail {

class PlacedTable {
 public:
  /// Borrows both.
  PlacedTable(const Question& question, const StagePlaces& places, bool reversed);

  /// There are so many placements that only some are looked at.
  bool limited() const { return limited_; }
  /// No plan is faster.
  double least_period() const { return bounds_.least_period(); }
  /// False: no plan of at most so many devices is within the period. True says nothing.
  bool possible(double period, int64_t most_devices);
  /// A plan within the period, of fewest devices; forward only, of least latency. Nothing if there is none of
  /// at most so many devices (or, if limited, none was found).
  std::optional<Answer> within(double period, int64_t most_devices);
  /// Of the answer found last; forward only.
  double latency_seconds() const { return latency_seconds_; }

 private:
  LabelSet& at(int64_t place, int state) {
    return labels_[static_cast<size_t>(place) * q_.states->size() + static_cast<size_t>(state)];
  }
  bool may_begin(int state, const Label& label) const;
  void extend(int64_t place, int i, int j);
  void add_blocks(int64_t place, const PlacedStage& stage, const Label& after, int rest, int64_t least);
  void fill_block(int64_t place, const PlacedStage& stage, const Label& after, int rest, int64_t least);
  void add(int64_t place, const PlacedStage& stage, int rest, std::optional<Label> label);
  bool better(const Label& a, const Label& b) const;
  Answer answer_of(const Label& first);

  const Question& q_;
  const StagePlaces& places_;
  Placement placement_;
  StageBounds bounds_;
  Reach reach_;
  Dominance dominance_;
  bool limited_ = false;
  double latency_seconds_ = 0;
  std::vector<LabelSet> labels_;
};

}  // namespace pipewright::search_detail
