#include "runtime/verify/first_difference.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "runtime/serial/serial_versions.h"

namespace pipewright {
namespace {

using Element = ExactComparison::Element;

std::string minibatches_text(int64_t begin, int64_t end) {
  if (end - begin == 1) return "minibatch " + std::to_string(begin);
  return "minibatches " + std::to_string(begin) + " to " + std::to_string(end - 1);
}

// What is known of a checkpoint.
struct After {
  bool has_slot = false;  // `parameter`, and it was looked at
  // The first that differs of the last stage that differs: gradients come from there.
  std::optional<Element> slot, parameter;
  std::optional<Element> buffer;  // of the first stage: values come from there

  bool differs() const { return slot || parameter || buffer; }
};

std::optional<Element> in_last_stage(const TrainedModel& got, const TrainedModel& expected,
                                     const std::vector<StageTensor>& places) {
  const auto different = compare_exactly(got, expected, places).different;
  if (different.empty()) return {};
  const auto place =
      std::max_element(different.begin(), different.end(),
                       [](const StageTensor& a, const StageTensor& b) { return a.stage < b.stage; });
  return compare_exactly(got, expected, {*place}).first_element;
}

After compare_at(const Job& job, const Retraining& retraining, const std::filesystem::path& run_folder,
                 const Checkpoint& checkpoint, int64_t first) {
  TrainedModel written = written_model(job, run_folder, checkpoint, first);
  TrainedModel serial =
      retraining.train(retraining.planned_until(checkpoint.manifest.next_minibatch), "first difference");
  written.losses = serial.losses = {};
  const std::vector<StageTensor> places =
      places_before(job, checkpoint.manifest.next_minibatch, is_drained(checkpoint.manifest));
  std::vector<StageTensor> parameters, buffers;
  std::partition_copy(places.begin(), places.end(), std::back_inserter(buffers),
                      std::back_inserter(parameters), [](const StageTensor& place) { return place.buffer; });
  After after;
  after.parameter = in_last_stage(written, serial, parameters);
  after.buffer = compare_exactly(written, serial, buffers).first_element;
  for (const auto& [slot, expected] : serial.slots) {
    const TrainedModel there = {{}, expected}, here = {{}, written.slots[slot]};
    std::vector<StageTensor> with_slot;
    std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(with_slot),
                 [&](const StageTensor& place) {
                   return there.tensors.count(place.name) && here.tensors.count(place.name);
                 });
    after.has_slot =
        after.has_slot || (after.parameter && there.tensors.count(after.parameter->place.name) > 0);
    const auto found = in_last_stage(here, there, with_slot);
    if (found && (!after.slot || after.slot->place.stage < found->place.stage)) after.slot = found;
  }
  return after;
}

// Does a stage update between the beginning of minibatch `begin` and that of `end`?
bool updates_between(const Job& job, int64_t begin, int64_t end) {
  const int64_t generation = job.generation_at(begin);
  const auto rules = weight_rule_of(job.plan_of(generation), job.gradient_accumulation_of(generation));
  return std::any_of(rules.begin(), rules.end(), [&](const SerialRule& rule) {
    return begin / rule.round_length != end / rule.round_length;
  });
}

}  // namespace

FirstDifference first_difference(const Job& job, const Retraining& retraining,
                                 const std::filesystem::path& run_folder, Span minibatches,
                                 const std::optional<ExactComparison::Loss>& first_loss) {
  std::vector<std::pair<int64_t, std::filesystem::path>> checkpoints;  // with the minibatch behind them
  for (const auto& folder : list_checkpoints(run_folder)) {
    const int64_t next = open_checkpoint(folder).manifest.next_minibatch;
    if (next > minibatches.first && next <= minibatches.end()) checkpoints.emplace_back(next, folder);
  }
  std::sort(checkpoints.begin(), checkpoints.end());
  // What differs once differs from there on.
  size_t equal = 0, different = checkpoints.size();  // so many from the front; the first, if any is
  After after;
  while (equal < different) {
    const size_t middle = (equal + different) / 2;
    After found = compare_at(job, retraining, run_folder, open_checkpoint(checkpoints[middle].second),
                             minibatches.first);
    if (!found.differs()) {
      equal = middle + 1;
      continue;
    }
    different = middle;
    after = std::move(found);
  }
  const int64_t begin = equal == 0 ? minibatches.first : checkpoints[equal - 1].first;
  const int64_t end = different < checkpoints.size() ? checkpoints[different].first : minibatches.end();
  FirstDifference first;
  const int64_t loss = first_loss ? minibatches.first + static_cast<int64_t>(first_loss->position) : end;
  if (!after.differs() || loss < end) {
    first.action = "the forward of minibatch " + std::to_string(loss);
    if (loss > begin && updates_between(job, begin, loss))
      first.action += ", or gradients or an update since minibatch " + std::to_string(begin);
    return first;
  }
  const std::string where = minibatches_text(begin, end);
  if (!after.parameter && !after.slot) {
    first.action = "the statistics that " + where + " leave";
    first.element = after.buffer;
  } else if (after.slot || !after.has_slot) {
    first.action = "the gradients of " + where +
                   (after.has_slot ? ", or what the optimizer keeps of them" : ", or the update behind them");
    first.element = after.parameter ? after.parameter : after.slot;
  } else {
    first.action = "the update behind " + where + ", whose gradients are right";
    first.element = after.parameter;
  }
  return first;
}

}  // namespace pipewright
