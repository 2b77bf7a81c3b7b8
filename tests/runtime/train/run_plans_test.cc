#include "runtime/train/run_plans.h"

#include <algorithm>
#include <random>

#include "graph/plan_changes.h"
#include "runtime/checkpoint/run_folder.h"
#include "tests/runtime/train/small_job.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

PlannedChange change_to(const Job& job, const std::string& file) {
  PlannedChange change;
  change.file = file;
  change.plan = job.plan;
  change.reason = "test";
  return change;
}

}  // namespace

TEST_CASE("run plans: a run whose plan stays has one file of it and no list") {
  const TemporaryFolder folder;
  Job job = prepare_job(small_run(folder), 1);
  std::filesystem::create_directories(job.run.output);
  const RunPlans plans(job);
  CHECK_FALSE(plans.may_change());
  CHECK(plans.begins() == std::vector<int64_t>{0});
  CHECK(plans.file_of(0) == "plan.json");
  plans.write_all(24);
  CHECK(std::filesystem::is_empty(job.run.output));
}

TEST_CASE("run plans: what is decided is in the folder as a list that a run can be given") {
  const TemporaryFolder folder;
  Job job = prepare_job(small_run(folder), 1);
  job.decides = true;
  const std::filesystem::path run = job.run.output;
  std::filesystem::create_directories(run);
  RunPlans plans(job);
  write_file(run / kChangesName, "of an earlier run");
  plans.write_all(24);
  CHECK(std::filesystem::exists(run / generation_plan_name(0)));
  CHECK_FALSE(std::filesystem::exists(run / kChangesName));
  const std::vector<int64_t> begins = {0, 5, 12};
  for (size_t k = 1; k < begins.size(); ++k) {
    PlannedChange change = change_to(job, "next.json");
    change.learning_rate_scale = 0.5;
    change.gradient_accumulation = static_cast<int64_t>(k);
    plans.add(std::move(change), begins[k]);
    plans.tell_last();
  }
  CHECK(plans.begins() == begins);
  CHECK(plans.file_of(2) == generation_plan_name(2));
  const std::vector<PlanChange> written = read_plan_changes(run / kChangesName);
  REQUIRE(written.size() == 2);
  for (size_t k = 1; k < begins.size(); ++k) {
    const auto number = static_cast<int64_t>(k);
    CHECK(written[k - 1].minibatch == begins[k]);
    CHECK(written[k - 1].learning_rate_scale == 0.5);
    CHECK(written[k - 1].gradient_accumulation == number);
    CHECK_FALSE(written[k - 1].freeze);  // the plan says it
    const std::filesystem::path file = written[k - 1].plan;
    CHECK(file.filename() == generation_plan_name(number));
    CHECK(read_file(file) == document_text(job.plan_of(number)));
  }
  // Of a run before, which had more of them.
  write_file(run / generation_plan_name(3), "{}");
  write_file(run / generation_plan_name(7), "{}");
  plans.remove_others();
  CHECK(plans_of_changes_in(run).size() == 4);  // three plans and their list
  CHECK_FALSE(std::filesystem::exists(run / generation_plan_name(3)));
}

TEST_CASE("run plans: a place to stop is never one where a plan ends, and lies behind what has begun") {
  const TemporaryFolder folder;
  const Job whole = prepare_job(small_run(folder), 1);
  std::mt19937_64 random(1);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int round = 0; round < 300; ++round) {
    Job job = whole;
    RunPlans plans(job);
    std::vector<int64_t> begins = {0};
    while (begins.size() < 5 && begins.back() < 20) {
      begins.push_back(begins.back() + between(1, 6));
      plans.add(change_to(job, "next.json"), begins.back());
    }
    const int64_t last_begun = between(-1, 22), behind = between(2, 5);
    int64_t asked_of = -1;
    const int64_t stop = plans.stop_behind(last_begun, [&](int64_t generation, int64_t last) {
      CHECK(generation > asked_of);  // each plan once, in their order
      asked_of = generation;
      const auto next = static_cast<size_t>(generation) + 1;
      const int64_t end = next < begins.size() ? begins[next] : 24;
      return std::min(last + behind, end);
    });
    CAPTURE(round, last_begun, behind, stop);
    CHECK(stop > last_begun);
    CHECK(std::find(begins.begin() + 1, begins.end(), stop) == begins.end());
  }
}
