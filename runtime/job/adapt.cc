#include "runtime/job/adapt.h"

#include "graph/document.h"
#include "graph/limits.h"
#include "graph/nearest.h"
#include "graph/plan_changes.h"
#include "runtime/job/freeze_policy.h"
#include "runtime/job/interference.h"
#include "runtime/job/slow_rank_plan.h"
#include "runtime/job/watched_plan.h"

namespace pipewright {
namespace {

std::unique_ptr<AdaptPolicy> never(SpecOptions& options) {
  options.finish();
  return std::make_unique<AdaptPolicy>();
}

class Manual : public AdaptPolicy {
 public:
  Manual(std::string file, int64_t drain_every) : file_(std::move(file)), drain_every_(drain_every) {}
  PlannedChanges known() override { return changes_of_file(file_, "manual"); }
  std::optional<int64_t> decides_every() const override {
    return drain_every_ > 0 ? std::optional(drain_every_) : std::nullopt;
  }

 private:
  const std::string file_;
  const int64_t drain_every_;
};

std::unique_ptr<AdaptPolicy> from_file(SpecOptions& options) {
  std::string file = options.string("file", "");
  const int64_t drain_every = options.integer("drain-every", 0, 0, kMostCount);
  options.finish();
  if (file.empty()) options.fail("file", "missing", "give --adapt manual:file=CHANGES.json");
  return std::make_unique<Manual>(std::move(file), drain_every);
}

}  // namespace

const std::vector<AdaptPolicyRow>& adapt_policies() {
  static const std::vector<AdaptPolicyRow> rows = {
      {"none", never},          {"manual", from_file},          {"watch", watched_plan},
      {"slow", slow_rank_plan}, {"interference", interference}, {"freeze", freezing}};
  return rows;
}

std::unique_ptr<AdaptPolicy> make_adapt_policy(const std::string& adapt) {
  SpecOptions options(parse_spec(adapt, "adapt"));
  std::vector<std::string> names;
  for (const AdaptPolicyRow& row : adapt_policies()) {
    if (options.spec().name == row.name) return row.make(options);
    names.push_back(row.name);
  }
  throw InputError("adapt: there is no policy '" + options.spec().name + "'" +
                   suggestion(options.spec().name, names));
}

PlannedChanges changes_of_file(const std::string& file, const std::string& reason) {
  PlannedChanges changes;
  for (const PlanChange& change : read_plan_changes(file)) {
    changes.push_back({change.minibatch,
                       change.plan,
                       {},
                       reason,
                       change.freeze,
                       change.gradient_accumulation,
                       change.learning_rate_scale});
    if (!change.plan.empty()) changes.back().plan = read_document<Plan>(change.plan);
  }
  return changes;
}

}  // namespace pipewright
