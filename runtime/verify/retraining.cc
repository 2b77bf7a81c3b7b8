#include "runtime/verify/retraining.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <set>

#include "graph/error.h"
#include "graph/sync_rules.h"
#include "models/definition/frozen.h"
#include "runtime/checkpoint/checkpoint_state.h"
#include "runtime/checkpoint/checkpoint_tensors.h"
#include "runtime/generation/state_source.h"
#include "runtime/journal/metrics_file.h"
#include "runtime/stage/partition.h"
#include "runtime/verify/rounding.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

// What is frozen under the plan was trained before, or may have been.
Plan with_all_trained(Plan plan) {
  plan.frozen_layers = 0;
  return plan;
}

// A tied parameter's, of another stage than its first.
std::string copy_name(const std::string& parameter, int64_t stage) {
  return parameter + " (copy of stage " + std::to_string(stage) + ")";
}

// All of a plan, with what they are copies of and their stages.
std::vector<std::pair<StageTensor, std::string>> copies_of(const Plan& plan) {
  std::vector<std::pair<StageTensor, std::string>> copies;
  for (const TiedParameter& tied : plan.tied_parameters)
    for (size_t i = 1; i < tied.stages.size(); ++i)
      copies.push_back({{copy_name(tied.name, tied.stages[i]), tied.stages[i]}, tied.name});
  return copies;
}

// Every tensor that a stage holds, once, in the order of stages.
std::vector<StageTensor> places_of(const std::vector<StageProgram>& programs) {
  std::vector<StageTensor> places;
  std::set<std::string> known;
  for (size_t s = 0; s < programs.size(); ++s) {
    const StageProgram& program = programs[s];
    const std::set<size_t> trainable(program.trainable().begin(), program.trainable().end());
    for (size_t i = 0; i < program.parameters().size(); ++i) {
      if (known.insert(program.parameters()[i]).second)
        places.push_back({program.parameters()[i], static_cast<int64_t>(s), trainable.count(i) > 0});
    }
    for (const std::string& buffer : program.buffers()) {
      if (known.insert(buffer).second) places.push_back({buffer, static_cast<int64_t>(s), false, true});
    }
  }
  return places;
}

// Which pipelines averaged their weights or met, and what was handed out to them, as rank 0 wrote it; nothing
// where it decides neither.
class WrittenGroups {
 public:
  WrittenGroups(const std::string& sync, const std::filesystem::path& run_folder, int64_t first) {
    const bool groups = sync_facts(sync).groups_by_arrival;
    if (!groups && !shares_minibatches(sync)) return;
    of_whole_pipelines_ = groups && averages_whole_pipelines(sync);
    const auto file = run_folder / kGroupLogName;
    LoggedGroups logged = read_group_log(file);
    if (logged.first_minibatch != first) {
      throw InputError(
          file.string() + ": has what was decided from minibatch " + std::to_string(logged.first_minibatch) +
              " on, and verify would begin at " + std::to_string(first),
          "What lies between is not written: a run whose pipelines average in groups or get their "
          "minibatches on the way is verified from where it began.");
    }
    groups_ = std::move(logged.generations);
    minibatches_ = std::move(logged.parts);
    meetings_ = std::move(logged.meetings);
  }
  PartsBySpan minibatches_of(int64_t generation) const { return of_generation(minibatches_, generation); }
  MeetingsBySpan meetings_of(int64_t generation) const { return of_generation(meetings_, generation); }
  GroupsByStage of(int64_t generation, const Plan& plan) const {
    const auto found = groups_.find(generation);
    if (found == groups_.end()) return {};
    // The last stage's are those of all.
    if (of_whole_pipelines_) return GroupsByStage(plan.stages.size(), found->second.back());
    return found->second;
  }

 private:
  template <typename Kind>
  static Kind of_generation(const std::map<int64_t, Kind>& all, int64_t generation) {
    const auto found = all.find(generation);
    return found == all.end() ? Kind() : found->second;
  }

  bool of_whole_pipelines_ = false;
  std::map<int64_t, GroupsByStage> groups_;
  std::map<int64_t, PartsBySpan> minibatches_;
  std::map<int64_t, MeetingsBySpan> meetings_;
};

// Minibatches first, first + 1, ... as the serial program asks for them.
std::function<MinibatchFields(int64_t)> minibatches_from(const Job& job, const TrainingData& data,
                                                         int64_t first, int64_t end,
                                                         const std::string& what) {
  std::vector<std::string> names;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < data.dataset().fields().size(); ++i) {
    const std::string& name = data.dataset().fields()[i].name;
    const auto& inputs = job.model.graph.inputs;
    if (std::find(inputs.begin(), inputs.end(), name) == inputs.end()) continue;
    names.push_back(name);
    numbers.push_back(i);
  }
  const auto requests = [&data, end, k = first]() mutable -> std::optional<LoadRequest> {
    return k < end ? std::optional(data.request(k++)) : std::nullopt;
  };
  const DataWorkers workers = data_workers(job.run.data_workers, job.run.threads);
  const auto loader = std::make_shared<Loader>(data.dataset(), numbers, requests, workers,
                                               minibatches_ahead(workers.count, job.run.batch_size));
  return [=, told = Clock::now()](int64_t k) mutable {
    if (Clock::now() - told > std::chrono::seconds(10)) {
      told = Clock::now();
      std::fprintf(stderr, "%s: minibatch %ld of %ld\n", what.c_str(), k - first, end - first);
    }
    MinibatchFields fields;
    auto tensors = loader->next();
    for (size_t i = 0; i < names.size(); ++i) fields[names[i]] = std::move(tensors[i]);
    return fields;
  };
}

}  // namespace

std::vector<StageProgram> programs_of(const Graph& model, const Plan& plan) {
  const Graph graph = frozen_graph(model, plan.frozen_layers);
  const auto interfaces = partition(graph, plan);
  std::vector<StageProgram> programs;
  for (size_t s = 0; s < interfaces.size(); ++s) programs.emplace_back(graph, interfaces, s);
  return programs;
}

std::vector<StageTensor> places_before(const Job& job, int64_t next, bool drained) {
  const Plan& plan = job.plan_of(job.generation_at(next - 1));
  std::vector<StageTensor> places = places_of(programs_of(job.model.graph, with_all_trained(plan)));
  for (const auto& [place, parameter] : copies_of(plan)) places.push_back(place);
  if (drained) return places;
  std::erase_if(places, [&](const StageTensor& place) {
    return place.buffer && plan.stages[static_cast<size_t>(place.stage)].ranks.size() > 1;
  });
  return places;
}

// Where the pipeline drained on the way to minibatch `end`, and which plan was in force: where spans end, and
// where a run ended that was made longer later.
std::vector<PlanSpans> Retraining::planned_until(int64_t end) const {
  std::set<int64_t> drains{end};
  for (const auto& folder : list_checkpoints(run_folder_)) {
    const CheckpointManifest manifest = open_checkpoint(folder).manifest;
    if (is_drained(manifest)) drains.insert(manifest.next_minibatch);
  }
  const WrittenGroups groups(job_.run.sync, run_folder_, data_.first_minibatch());
  std::vector<PlanSpans> parts;
  int64_t generation = -1;
  for (int64_t done = data_.first_minibatch(); done < end; done = parts.back().spans.back().end()) {
    if (generation != job_.generation_at(done)) {
      generation = job_.generation_at(done);
      parts.push_back({job_.plan_of(generation),
                       {},
                       groups.of(generation, job_.plan_of(generation)),
                       groups.minibatches_of(generation),
                       groups.meetings_of(generation),
                       job_.gradient_accumulation_of(generation),
                       job_.learning_rate_scale_of(generation)});
    }
    const Span planned = span_from(done, data_.length_of(generation));
    parts.back().spans.push_back({done, std::min(planned.end(), *drains.upper_bound(done)) - done});
  }
  return parts;
}

std::vector<PlanSpans> Retraining::on_one_device(std::vector<PlanSpans> parts) const {
  for (PlanSpans& part : parts) {
    TrainingRules rules = data_.rules_of(0);
    rules.gradient_accumulation = part.gradient_accumulation.value_or(rules.gradient_accumulation);
    part.plan = one_device_plan(job_.model, part.plan, rules);
    part.gradient_accumulation = 1;
    if (part.plan.schedule.empty()) return {};
  }
  return parts;
}

TrainedModel Retraining::train(const std::vector<PlanSpans>& parts, const std::string& what,
                               bool shifted) const {
  const auto programs = programs_of(job_.model.graph, parts.front().plan);
  const int64_t first = parts.front().spans.front().first;
  const auto source = start_of(job_.run, job_.model, job_.resume);
  ReferenceResult result = train_serially(
      job_.model, parts, data_.rules_of(0),
      minibatches_from(job_, data_, first, parts.back().spans.back().end(), what),
      [&](size_t stage) -> std::optional<StageState> {
        auto state = source->state_of(static_cast<int64_t>(stage), 0, programs[stage]);
        if (!shifted) return state;
        if (!state) state = initial_state(job_.model, programs[stage], static_cast<uint64_t>(job_.run.seed));
        shift_by_rounding(programs[stage], *state);
        return state;
      });
  TrainedModel model;
  model.losses = std::move(result.losses);
  model.tensors = std::move(result.weights);
  for (const auto& stage : result.buffers)
    for (const auto& [name, tensor] : stage.front()) model.tensors.emplace(name, tensor);
  for (const auto& [place, parameter] : copies_of(parts.back().plan))
    model.tensors[place.name] = model.tensors.at(parameter);
  model.slots = std::move(result.slots);
  return model;
}

std::map<std::string, at::Tensor> Retraining::start() const {
  const auto programs = programs_of(job_.model.graph, single_stage_plan(job_.model.graph, 1));
  const StageProgram& whole = programs.front();
  const StageState state =
      start_of(job_.run, job_.model, job_.resume)
          ->state_of(0, 0, whole)
          .value_or(initial_state(job_.model, whole, static_cast<uint64_t>(job_.run.seed)));
  std::map<std::string, at::Tensor> start;
  for (size_t i = 0; i < whole.parameters().size(); ++i) start[whole.parameters()[i]] = state.weights[i];
  for (size_t i = 0; i < whole.buffers().size(); ++i) start[whole.buffers()[i]] = state.buffers[i];
  return start;
}

TrainedModel written_model(const Job& job, const std::filesystem::path& run_folder,
                           const Checkpoint& checkpoint, int64_t first) {
  TrainedModel model;
  const int64_t end = checkpoint.manifest.next_minibatch;
  const auto file = run_folder / "metrics.jsonl";
  MetricsHistory(file, end, 0).read([&](const MetricsLine& line) {
    if (line.minibatch && line.minibatch->number >= first) model.losses.push_back(line.minibatch->loss);
  });
  if (static_cast<int64_t>(model.losses.size()) != end - first) {
    throw InputError(file.string() + ": does not have the losses of minibatches " + std::to_string(first) +
                         " to " + std::to_string(end - 1) + ", each in one line",
                     "Was it cut, or does it belong to another run?");
  }
  const auto programs = programs_of(job.model.graph, single_stage_plan(job.model.graph, 1));
  const StageProgram& whole = programs.front();
  const StageState state = load_stage_state(checkpoint, whole, job.run.optimizer);
  for (size_t i = 0; i < whole.parameters().size(); ++i)
    model.tensors[whole.parameters()[i]] = state.weights[i];
  for (size_t i = 0; i < whole.buffers().size(); ++i) model.tensors[whole.buffers()[i]] = state.buffers[i];
  CheckpointTensors tensors_of(checkpoint);
  for (const auto& [place, parameter] : copies_of(checkpoint.manifest.plan))
    model.tensors[place.name] = tensors_of.buffer_of(place.stage, 0, parameter);
  for (const auto& [slot, tensors] : state.optimizer.slots)
    for (size_t i = 0; i < tensors.size(); ++i)
      model.slots[slot][whole.parameters()[whole.trainable()[i]]] = tensors[i];
  return model;
}

}  // namespace pipewright
