#include "runtime/job/recovery_policy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/rows.h"
#include "graph/spec.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/plan/updates.h"
#include "runtime/job/adapt.h"
#include "runtime/job/policy_links.h"

namespace pipewright {
namespace {

struct Row {
  const char* name;
  OnLoss on_loss;
};

OnLoss named(const std::string& name, const std::string& said) {
  static const std::vector<Row> rows = {
      {"end", OnLoss::kEnd}, {"restart", OnLoss::kRestart}, {"continue", OnLoss::kContinue}};
  return row_named(rows, said, name).on_loss;
}

// Of the devices that are left nobody says which they are: they reach each other over the slowest link that
// some of them may need.
Topology topology_of(const Topology& whole, int64_t ranks) {
  if (whole.device_count() == ranks) return whole;
  Topology left = whole;
  left.devices.clear();
  int64_t devices = 1;
  size_t level = 0;
  while (level + 1 < whole.levels.size() && devices * whole.levels[level].count < ranks)
    devices *= whole.levels[level++].count;
  TopologyLevel link = whole.levels[level];
  link.count = ranks;
  left.levels = {link};
  return left;
}

}  // namespace

OnLoss on_loss_of(const Run& run, const std::string& said) {
  return named(parse_spec(run.recovery.on_loss, said).name, said);
}

RecoveryPolicy::RecoveryPolicy(const std::string& on_loss) {
  SpecOptions options(parse_spec(on_loss, "--on-loss"));
  on_loss_ = named(options.spec().name, "--on-loss");
  if (on_loss_ != OnLoss::kContinue) {
    options.finish();
    return;
  }
  const std::string profile = options.string("profile", "");
  PolicyLinks links = policy_links(options, "--on-loss continue");
  options.finish();
  if (profile.empty()) {
    options.fail("profile", "missing: the ranks that are left get a plan of their own",
                 "give --on-loss continue:profile=PROFILE.json, of pipewright-profiler");
  }
  profile_ = read_document<Profile>(profile);
  topology_ = std::move(links.topology);
  bandwidth_bytes_per_second_ = links.bandwidth_bytes_per_second;
}

Plan RecoveryPolicy::plan_for(int64_t ranks, const Plan& first) const {
  PW_CHECK(profile_, "--on-loss continue plans again");
  PlanRequest request = request_like(first);
  request.most_minibatches_per_update = updates_of(first).most_minibatches;
  return make_plan(*profile_,
                   topology_ ? topology_of(*topology_, ranks)
                             : flat_topology(ranks, bandwidth_bytes_per_second_, kUsualLatencySeconds, 0),
                   request);
}

}  // namespace pipewright
