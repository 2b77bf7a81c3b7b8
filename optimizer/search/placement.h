// What a stage costs on the next devices of a row that a suffix of the model has begun to fill, and what the
// longer suffix is like for the stages before it. For the search's own files; search_levels.h says why this
// is all there is to know of a suffix.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "optimizer/cost/levels.h"
#include "optimizer/search/search.h"

namespace pipewright::search_detail {

inline constexpr size_t kMostLinks = 8;  // kinds of links in common
using Loads = std::array<double, kMostLinks>;

/// A way to run the model from a state to its end.
struct Label {
  int64_t devices = 0;
  int64_t first_replicas = 0;  ///< of the first stage; in a server, inside a block
  int64_t copies = 1;          ///< servers of the block that is being filled; 1: none is
  int64_t filled = 0;          ///< devices of each of its servers
  bool replicated = false;
  int first_span = 0;           ///< highest level inside the first stage; only forward-only questions keep it
  double latency_seconds = 0;   ///< from the first stage on; only forward-only questions keep it
  std::vector<int64_t> shares;  ///< of the first stage's replicas, where devices differ
  Loads loads{};  ///< of the links of the groups that are half filled, without the cut before the first stage
  // The first stage, and where it continues.
  int next = -1;
  int64_t next_place = 0;
  int rest = -1;
  int64_t begin = 0;
  int64_t replicas = 0;  ///< in each copy
  int64_t stage_copies = 1;
  bool recompute = false;
};

/// Numbers of a stage that do not depend on its place.
struct PlacedStage {
  int from = 0;
  int to = 0;
  StageLoad load;
  double compute = 0;  ///< without recomputing; where devices are alike
  double step = 0;
  double gradient_bytes = 0;
  double in_bytes = 0;
  double out_bytes = 0;
};

/// Prices stages for one question and one order of its devices. Borrows the question.
class Placement {
 public:
  Placement(const Question& question, bool reversed);

  /// Every stage must be within it.
  void set_period(double seconds) { period_ = seconds; }

  const LevelCosts& costs() const { return costs_; }
  bool reversed() const { return reversed_; }
  /// Suffixes that leave groups filled alike have the same number of devices modulo this.
  int64_t largest() const { return largest_; }
  /// Devices of a server where pipelines inside servers are looked at; 0: they are not.
  int64_t server() const { return server_; }
  bool limited_memory() const { return limited_memory_; }
  double fastest() const { return fastest_; }    ///< pace of a device (CostInputs::paces)
  double pace_sum() const { return pace_sum_; }  ///< of all of them

  PlacedStage stage(int from, int to) const;

  /// False: no suffix on devices [0, begin) lets the stage stand on [begin, begin + replicas).
  bool possible_alone(const PlacedStage& stage, int64_t begin, int64_t replicas) const;
  /// The suffix that has the stage there, before `after`. Nothing if it is not within period and memory.
  std::optional<Label> place(const PlacedStage& stage, const Label& after, int64_t replicas) const;

  /// The same where the stage is part of a pipeline that stands in several servers alike: of `copies`
  /// servers, `filled` devices of each are taken, `replicas` more follow.
  bool possible_in_block(const PlacedStage& stage, int64_t copies, int64_t filled, int64_t replicas) const;
  Label begin_block(const Label& after, int64_t copies, double out_bytes) const;
  std::optional<Label> place_in_block(const PlacedStage& stage, const Label& after, int64_t replicas) const;

  /// Part of the suffix's first stage that stands in the half-filled group of `size`.
  static double part_in(const Label& after, int64_t size);

 private:
  /// What a stretch of devices gives to any stage on it. Positions are counted from its first device.
  struct Stretch {
    /// A group that it stands in: the first, one of those that it fills, the last.
    struct Piece {
      size_t link;
      int64_t begin, end;
      bool with_rest;  ///< stages behind may have devices of the group
      bool complete;   ///< with what stands before the stage, the group is full
      double exchange_per_byte;
    };
    std::vector<Piece> pieces;
    int in_level = 0;
    int out_level = 0;
    int span = 0;
    double exchange_latency = 0;
    double exchange_per_byte = 0;
  };
  const Stretch& stretch(int64_t begin, int64_t replicas) const;
  bool possible_in_block(const PlacedStage& stage, double compute, int64_t copies, int64_t filled,
                         int64_t replicas) const;
  Stretch made(int64_t begin, int64_t replicas) const;
  int64_t device_at(int64_t position) const { return reversed_ ? q_.devices - 1 - position : position; }
  /// Where devices differ: seconds of a minibatch on each of [begin, end).
  std::vector<double> seconds_on(const PlacedStage& stage, bool recompute, int64_t begin, int64_t end) const;
  /// Seconds of a minibatch where devices are alike, recomputing where it must; nothing if it does not fit.
  std::optional<double> fitted(const PlacedStage& stage, int64_t replicas, int64_t later, int64_t memory,
                               bool* recompute) const;
  int64_t memory_of(int64_t begin, int64_t end) const;

  const Question& q_;
  const States& states_;
  LevelCosts costs_;
  bool reversed_;
  double period_ = 0;
  int64_t largest_ = 1;
  int64_t server_ = 0;
  double fastest_ = 1;
  double pace_sum_ = 1;
  bool limited_memory_ = false;
  mutable std::vector<std::vector<std::unique_ptr<Stretch>>> stretches_;  ///< by begin modulo largest, length
  mutable std::vector<std::vector<std::optional<StageWorkspace>>> workspace_;  ///< by from, to
};

}  // namespace pipewright::search_detail
