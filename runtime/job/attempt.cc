#include "runtime/job/attempt.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/control/attempt_number.h"

namespace pipewright {

Attempt Attempt::from_json(JsonReader& reader) {
  Attempt attempt;
  attempt.number = reader.integer("attempt", 1, kMostCount);
  attempt.began = reader.boolean("began");
  attempt.reason = reader.string("reason");
  attempt.lost_at_seconds = reader.number("lost_at_seconds", 0, 1e12);
  attempt.job_began_at_seconds = reader.number("job_began_at_seconds", 0, 1e12);
  if (reader.has("plan")) {
    JsonReader plan = reader.object("plan");
    attempt.plan = Plan::from_json(plan);
    plan.finish();
  }
  return attempt;
}

Json Attempt::to_json() const {
  Json json;
  json["attempt"] = number;
  json["began"] = began;
  json["reason"] = reason;
  json["lost_at_seconds"] = lost_at_seconds;
  json["job_began_at_seconds"] = job_began_at_seconds;
  if (plan) json["plan"] = plan->to_json();
  return json;
}

std::filesystem::path attempt_file(const std::filesystem::path& run_folder) {
  return run_folder / ".attempt.json";
}

void write_attempt(const std::filesystem::path& run_folder, const Attempt& attempt) {
  write_file(attempt_file(run_folder), json_text(attempt.to_json()));
}

std::optional<Attempt> read_attempt(const std::filesystem::path& run_folder) {
  const int64_t number = attempt_of_process();
  if (number == 0) return std::nullopt;
  const std::filesystem::path file = attempt_file(run_folder);
  const Json json = read_json_file(file);
  JsonReader reader(json, file.string());
  Attempt attempt = Attempt::from_json(reader);
  reader.finish();
  if (attempt.number != number) {
    throw RunError(file.string() + ": is of attempt " + std::to_string(attempt.number) +
                       ", this process of " + std::to_string(number),
                   "The run folder must lie on a file system that all hosts of the job share.");
  }
  return attempt;
}

namespace {

// The first that is whole.
std::optional<Checkpoint> first_whole(const std::vector<std::filesystem::path>& folders) {
  for (const std::filesystem::path& folder : folders) {
    try {
      return open_checkpoint(folder);
    } catch (const Error& error) {
      std::fprintf(stderr, "passed over: %s\n", error.what());
    }
  }
  return std::nullopt;
}

int64_t number_of(const std::filesystem::path& checkpoint) { return minibatch_of(checkpoint).value_or(0); }

}  // namespace

std::optional<Checkpoint> newest_written(const Run& run, int64_t minibatch) {
  auto written = list_checkpoints(run.output);
  std::erase_if(written, [&](const auto& folder) { return number_of(folder) <= minibatch; });
  return first_whole(written);
}

RecoveredState newest_state(const Run& run) {
  const auto starts = read_starts(run.output);
  std::vector<std::filesystem::path> kept;
  for (const KeptAttempt& attempt : list_kept_attempts(kept_state_of(run.output))) {
    for (const auto& folder : list_checkpoints(attempt.folder))
      if (is_of_this_past(attempt.attempt, number_of(folder), starts)) kept.push_back(folder);
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const auto& a, const auto& b) { return number_of(a) > number_of(b); });
  auto in_memory = first_whole(kept);
  auto written = newest_written(run, in_memory ? in_memory->manifest.next_minibatch : -1);
  if (written) return {std::move(written), "checkpoint"};
  if (in_memory) return {std::move(in_memory), "memory"};
  return {find_resume(run, /*every_byte=*/false), "start"};
}

}  // namespace pipewright
