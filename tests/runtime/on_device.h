// Training on a device against training on the processor.
#pragma once

#include "runtime/transport/copy_engine.h"
#include "runtime/transport/staged.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"

namespace pipewright::testing {

// Largest difference between two lists of tensors, relative to the larger of 1 and the numbers themselves.
inline double distance(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.detach().cpu().to(at::kDouble), b = other.detach().cpu().to(at::kDouble);
  return ((a - b).abs() / b.abs().clamp_min(1)).max().item<double>();
}

/// How tensors of a device go from rank to rank: through memory of the host that it reaches; handed over; or
/// (the stand-in device's only) through blocks of its own.
enum class Way { kStaged, kHandedOver, kBlocks };

/// Ranks as threads. Messages of several tensors are packed, as between ranks of a job.
inline std::vector<std::unique_ptr<Transport>> make_device_world(at::Device device, int64_t size,
                                                                 Way way = Way::kStaged) {
  if (way == Way::kHandedOver) return make_world("local", size);
  std::vector<std::unique_ptr<Transport>> world;
  for (auto& own : make_world("local", size)) {
    const std::shared_ptr<Transport> host = std::move(own);
    auto between = way == Way::kStaged ? make_staged_transport(host, make_copy_engine(device))
                                       : make_block_transport(host, std::make_unique<LateBlocks>());
    world.push_back(make_device_routed_transport(
        host, std::move(between), std::vector<bool>(static_cast<size_t>(size), true), Packer()));
  }
  return world;
}

/// Trains on the device and compares with the serial program on the processor. The steps' operators round
/// elsewhere (runtime/device_step.h), so equality is up to `tolerance`.
inline void compare_on_device(const RandomJob& job, at::Device device, double tolerance,
                              Way way = Way::kStaged) {
  TrainingRules rules = job.rules;
  rules.total_minibatches = job.spans.back().end();
  const auto minibatches = random_minibatches(job.model.graph, rules.total_minibatches, 5);
  const ReferenceResult expected = train_serially(
      job.model, job.plan, rules, job.spans, [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
  rules.device = device;
  const auto world = [&] {
    return job.plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>()
                                    : make_device_world(device, job.plan.world_size, way);
  };
  const PipelineRun run = run_pipeline(job.model, job.plan, rules, job.spans, minibatches, world());
  CAPTURE(job.plan.shape_text(), job.plan.schedule, job.plan.weights, job.rules.optimizer.name);
  for (size_t k = 0; k < expected.losses.size(); ++k) {
    const auto here = static_cast<size_t>(job.spans[0].first) + k;
    CHECK(run.losses[here] == Approx(expected.losses[k]).epsilon(tolerance));
  }
  for (const auto& [name, replicas] : run.weights) {
    for (const at::Tensor& weight : replicas) {
      INFO(name);
      CHECK(weight.device() == device);
      CHECK(distance(weight, expected.weights.at(name)) < tolerance);
      CHECK(weight.cpu().equal(replicas[0].cpu()));
    }
  }
  for (size_t s = 0; s < run.buffers.size(); ++s) {
    for (size_t q = 0; q < run.buffers[s].size(); ++q) {
      for (const auto& [name, buffer] : run.buffers[s][q])
        CHECK(distance(buffer, expected.buffers[s][q].at(name)) < tolerance);
    }
  }
}

}  // namespace pipewright::testing
