// Who sends what to whom when one plan takes over from another: the runtime carries it out, `check` prices
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pipewright {

/// By name of something that ranks hold: those that do under a plan, each once. The copy of the first counts
/// where copies differ.
using Holders = std::map<std::string, std::vector<int64_t>>;

struct HeldThing {
  int64_t bytes = 0;
  bool equal_on_holders = true;
};

/// One message.
struct PlanMove {
  int64_t from = 0;
  int64_t to = 0;
  std::vector<std::string> names;  ///< ascending
  int64_t bytes = 0;
};

/// What each rank lacks under `next` of what is there under `last`; nothing for what stays. Everybody works
/// out the same: ascending by (from, to), one message each. Of several holders of equal copies the one that
/// has least to send does. Each name of `next` is one of `last`.
std::vector<PlanMove> plan_moves(const Holders& last, const Holders& next,
                                 const std::function<HeldThing(const std::string&)>& thing);

/// The busiest rank's time for the messages that it sends, or for those that it gets, if it takes them one
/// after the other.
double busiest_seconds(const std::vector<PlanMove>& moves,
                       const std::function<double(const PlanMove&)>& message_seconds);

}  // namespace pipewright
