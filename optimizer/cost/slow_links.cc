#include "optimizer/cost/slow_links.h"

#include <algorithm>
#include <map>
#include <set>

#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/stage_times.h"

namespace pipewright {
namespace {

class LinkTimes {
 public:
  explicit LinkTimes(const SlowLinks& links) {
    for (const SlowLink& link : links) links_[{link.from, link.to}] = link;
  }

  /// Of the senders' messages, which take so long on links as they should be.
  double slowest(const Stage& senders, const Stage& receivers, double seconds, int64_t bytes) const {
    double most = 0;
    for (const int64_t from : senders.ranks) {
      double sum = 0;
      for (const int64_t to : receivers.ranks) sum += on_link(from, to, seconds, bytes);
      most = std::max(most, sum / static_cast<double>(receivers.ranks.size()));
    }
    return most;
  }
  /// Of a sum over the ranks: how many times as long it takes.
  double slowest_sum(const std::vector<int64_t>& ranks) const {
    const std::set<int64_t> replicas(ranks.begin(), ranks.end());
    double most = 1;
    for (const auto& [ends, link] : links_)
      if (replicas.contains(ends.first) && replicas.contains(ends.second))
        most = std::max(most, link.slowdown);
    return most;
  }

 private:
  double on_link(int64_t from, int64_t to, double seconds, int64_t bytes) const {
    const auto link = links_.find({from, to});
    if (from == to || link == links_.end() || seconds == 0) return seconds;
    return std::max(seconds * link->second.slowdown,
                    link->second.seconds_per_byte * static_cast<double>(bytes));
  }

  std::map<std::pair<int64_t, int64_t>, SlowLink> links_;
};

}  // namespace

std::vector<StageTimes> slowed(std::vector<StageTimes> times, const std::vector<Stage>& stages,
                               const std::vector<StageLoad>& loads, const SlowLinks& links) {
  const LinkTimes on_links(links);
  for (size_t s = 0; s < stages.size(); ++s) {
    StageTimes& own = times[s];
    if (s + 1 < stages.size())
      own.send_activation_seconds =
          on_links.slowest(stages[s], stages[s + 1], own.send_activation_seconds, loads[s].out_bytes);
    if (s > 0)
      own.send_gradient_seconds =
          on_links.slowest(stages[s], stages[s - 1], own.send_gradient_seconds, loads[s].in_bytes);
    own.reduce_seconds *= on_links.slowest_sum(stages[s].ranks);
  }
  return times;
}

std::vector<StageTimes> slowed_messages(const std::vector<Stage>& stages, const std::vector<StageLoad>& loads,
                                        const CostInputs& inputs) {
  std::vector<StageTimes> times(loads.size());
  for (size_t s = 0; s < loads.size(); ++s) add_messages(loads[s], inputs, &times[s]);
  return slowed(std::move(times), stages, loads, inputs.slow_links);
}

double message_period_seconds(const StageTimes& times, int64_t replicas) {
  return std::max(times.send_activation_seconds, times.send_gradient_seconds) / static_cast<double>(replicas);
}

}  // namespace pipewright
