#include "runtime/job/attempt.h"

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

RecoveredState newest_state(const Run& run) {
  const std::filesystem::path memory = kept_state_of(run.output);
  const auto kept = list_checkpoints(memory), written = list_checkpoints(run.output);
  const auto number = [](const std::filesystem::path& folder) { return minibatch_of(folder).value_or(0); };
  auto k = kept.begin(), w = written.begin();
  while (k != kept.end() || w != written.end()) {
    const bool in_memory = w == written.end() || (k != kept.end() && number(*k) >= number(*w));
    const std::filesystem::path folder = in_memory ? *k++ : *w++;
    try {
      return {open_checkpoint(folder), in_memory ? "memory" : "checkpoint"};
    } catch (const Error& error) {
      std::fprintf(stderr, "passed over: %s\n", error.what());
    }
  }
  if (auto resume = find_resume(run, /*every_byte=*/false)) return {std::move(resume), "start"};
  return {std::nullopt, "start"};
}

}  // namespace pipewright
