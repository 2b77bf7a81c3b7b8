// What constraints leave open, stage by stage: where the stage of each number may begin and how many replicas
// it may have.
//
// A stage's number counts from the front, the searches' suffixes from the back; so suffixes are kept by the
// number of the stage they begin with ("place"), as far as constraints name stages. From there on all stages
// are alike. Without constraints there is one place for all.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "optimizer/cost/dataflow.h"
#include "optimizer/cuts/states.h"

namespace pipewright {

struct StageConstraints {
  std::map<int64_t, int64_t> replicas;  ///< stage -> replicas; there must be such a stage
  std::map<std::string, int64_t> pins;  ///< layer (with all below it: "features" has "features.3") or node
  int64_t most_stages = 0;              ///< 0: any number

  bool any() const { return !replicas.empty() || !pins.empty() || most_stages > 0; }
  bool operator==(const StageConstraints&) const = default;
};

class StagePlaces {
 public:
  /// `pinned`: nodes by the stage they are pinned to (pinned_nodes()). `least_stages`: so many there must be.
  StagePlaces(const States& states, const StageConstraints& constraints, const std::vector<NodeSet>& pinned,
              int64_t least_stages);

  /// The same for some of the states, given by number.
  StagePlaces among(const std::vector<int>& states) const;

  /// False: more stages are named than there may be.
  bool possible() const { return named_ <= places_; }
  /// Places of stages are [0, count()).
  int64_t count() const { return places_; }
  /// The place after a stage's; at most count().
  int64_t next(int64_t place) const { return endless_ && place + 1 == places_ ? place : place + 1; }
  /// Whether a stage of this place, or the end of the model, may come after the cut `state`.
  bool begins(int64_t place, int state) const { return begins_[place][state] != 0; }
  /// Whether a plan may have just the stages before this place.
  bool ends(int64_t place) const { return place >= named_; }
  /// Replicas that a stage must have; 0: any number.
  int64_t replicas(int64_t place) const;

 private:
  std::map<int64_t, int64_t> replicas_;
  int64_t named_ = 0;   // stages that there must be
  int64_t places_ = 1;  // stages told apart
  bool endless_ = true;
  std::vector<std::vector<char>> begins_;  // by place, by state
};

}  // namespace pipewright
