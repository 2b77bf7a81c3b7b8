#include "runtime/train/run_plans.h"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "graph/document.h"
#include "graph/plan_changes.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/coordinator/coordinator.h"

namespace pipewright {
namespace {

// Its plan says what is frozen.
PlanChange recorded(const PlannedChange& change, const std::string& plan) {
  return {change.minibatch, plan, {}, change.gradient_accumulation, change.learning_rate_scale};
}

}  // namespace

std::vector<int64_t> RunPlans::begins() const {
  std::vector<int64_t> begins;
  for (int64_t k = 0; k < job_.generations(); ++k) begins.push_back(job_.first_minibatch_of(k));
  return begins;
}

std::string RunPlans::file_of(int64_t generation) const {
  return may_change() ? generation_plan_name(generation) : "plan.json";
}

void RunPlans::add(PlannedChange change, int64_t minibatch) {
  change.minibatch = minibatch;
  const std::lock_guard lock(mutex_);
  job_.changes.push_back(std::move(change));
}

int64_t RunPlans::stop_behind(
    int64_t last_begun, const std::function<int64_t(int64_t generation, int64_t last_begun)>& place) const {
  const std::lock_guard lock(mutex_);
  const auto end_of = [this](int64_t generation) {
    return generation + 1 < job_.generations() ? std::optional(job_.first_minibatch_of(generation + 1))
                                               : std::nullopt;
  };
  return place_within_plan(job_.generation_at(last_begun + 1), last_begun, place, end_of);
}

void RunPlans::write_all(int64_t minibatches) const {
  if (!may_change()) return;
  const std::filesystem::path folder = job_.run.output;
  for (int64_t k = 0; k < job_.generations(); ++k)
    write_document(folder / generation_plan_name(k), job_.plan_of(k));
  write_list();
  if (!job_.changes.empty() && job_.changes.back().minibatch >= minibatches) {
    std::fprintf(stderr, "the run ends at minibatch %ld: it does not come to the change at minibatch %ld\n",
                 minibatches, job_.changes.back().minibatch);
  }
}

void RunPlans::tell_last() const {
  const int64_t number = job_.generations() - 1;
  write_document(std::filesystem::path(job_.run.output) / generation_plan_name(number), job_.plan_of(number));
  write_list();
  const PlannedChange& taken = job_.changes.back();
  const std::string plan = taken.file.empty() ? "" : taken.file + " ";
  const std::string frozen = taken.freeze ? std::to_string(*taken.freeze) + " layers frozen " : "";
  std::fprintf(stderr, "from minibatch %ld on: %s%s(%s)\n", taken.minibatch, plan.c_str(), frozen.c_str(),
               taken.reason.c_str());
}

void RunPlans::remove_others() const {
  std::error_code ignored;
  const std::filesystem::path folder = job_.run.output;
  for (const auto& name : plans_of_changes_in(folder, may_change() ? job_.generations() : 0))
    std::filesystem::remove(folder / name, ignored);
}

void RunPlans::write_list() const {
  const std::filesystem::path file = std::filesystem::path(job_.run.output) / kChangesName;
  std::error_code ignored;
  if (job_.changes.empty()) {
    std::filesystem::remove(file, ignored);
    return;
  }
  std::vector<PlanChange> changes;
  for (int64_t k = 1; k < job_.generations(); ++k)
    changes.push_back(recorded(job_.changes[static_cast<size_t>(k) - 1], generation_plan_name(k)));
  write_file(file, plan_changes_text(changes));
}

}  // namespace pipewright
