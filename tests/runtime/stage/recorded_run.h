// Training with recordings against training without.
#pragma once

#include "runtime/train/run_results.h"
#include "tests/runtime/stage/on_device.h"

namespace pipewright::testing {

struct RecordedRun {
  PipelineRun run;
  int64_t forwards = 0;            ///< that ran as recordings, over all ranks
  int64_t positions = 0;           ///< likewise
  int64_t size = 0;                ///< of all recordings, in kernels and the like
  std::vector<std::string> texts;  ///< by rank: what the summary says
};

/// With `graphs`, or without if it is empty.
inline RecordedRun train_recorded(const RandomJob& job, at::Device device, const MakeDeviceGraphs& graphs,
                                  const std::string& asked = "on") {
  TrainingRules rules = job.rules;
  rules.total_minibatches = job.spans.back().end();
  rules.device = device;
  rules.cuda_graphs = graphs ? asked : "off";
  rules.make_graphs = graphs;
  const auto minibatches = random_minibatches(job.model.graph, rules.total_minibatches, 5);
  RecordedRun result;
  result.texts.resize(static_cast<size_t>(job.plan.world_size));
  std::mutex mutex;
  RankExtras extras;
  extras.finish = [&](Worker& worker) {
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < worker.stage_count(); ++i) {
      if (!worker.stage(i).recordings()) continue;
      result.forwards += worker.stage(i).recordings()->recorded_forwards();
      result.positions += worker.stage(i).recordings()->positions();
      result.size += worker.stage(i).recordings()->size();
    }
    const auto rank = job.plan.stages[static_cast<size_t>(worker.stage().stage())]
                          .ranks[static_cast<size_t>(worker.replica())];
    result.texts[static_cast<size_t>(rank)] = cuda_graphs_text(worker);
  };
  auto world = job.plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>()
                                        : make_device_world(device, job.plan.world_size);
  result.run = run_pipeline(job.model, job.plan, rules, job.spans, minibatches, std::move(world), {}, extras);
  return result;
}

/// Bit for bit.
inline void check_equal(const PipelineRun& one, const PipelineRun& other) {
  CHECK(one.losses == other.losses);
  for (const auto& [name, replicas] : one.weights) {
    INFO(name);
    for (size_t q = 0; q < replicas.size(); ++q)
      CHECK(replicas[q].cpu().equal(other.weights.at(name)[q].cpu()));
  }
  for (size_t s = 0; s < one.buffers.size(); ++s) {
    for (size_t q = 0; q < one.buffers[s].size(); ++q) {
      for (const auto& [name, buffer] : one.buffers[s][q]) {
        INFO(name << " at stage " << s << " replica " << q);
        CHECK(buffer.cpu().equal(other.buffers[s][q].at(name).cpu()));
      }
    }
  }
  CHECK(one.peak_versions == other.peak_versions);
  CHECK(one.peak_in_flight == other.peak_in_flight);
}

}  // namespace pipewright::testing
