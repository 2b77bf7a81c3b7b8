#include "runtime/train/run_results.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "graph/digest.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/sync_rules.h"
#include "models/device/device.h"
#include "models/memory/memory_meter.h"
#include "models/memory/process_memory.h"
#include "runtime/launch/cores.h"
#include "runtime/schedule/draw.h"
#include "runtime/transport/process_state.h"

namespace pipewright {

namespace {

// On one clock, whose 0 is that of the rank that began first.
std::string trace_of_all(const std::vector<TraceDocument>& documents) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const TraceDocument& each : documents) first = std::min(first, each.zero_unix_microseconds);
  TraceWriter trace;
  for (const TraceDocument& each : documents)
    trace.append(each.text, static_cast<double>(each.zero_unix_microseconds - first) / 1e6);
  return trace.json();
}

// Of the stages of a rank: memory adds up; of what is counted, the largest is told.
void add_stages(RankSummary& rank, const Worker& worker, const EmulatedPlan* emulated, const Plan& plan) {
  Digest weights;
  for (size_t i = 0; i < worker.stage_count(); ++i) {
    const StageReplica& stage = worker.stage(i);
    for (const at::Tensor& weight : stage.weights()) {
      const at::Tensor bytes = weight.cpu().contiguous();
      weights.add(bytes.data_ptr(), bytes.nbytes());
    }
    if (!plan.predicted || emulated) continue;
    const StageMemory& predicted = plan.predicted->stages[static_cast<size_t>(stage.stage())].memory;
    rank.predicted_memory_bytes += predicted.total_bytes();
    if (!rank.predicted_memory) rank.predicted_memory.emplace();
    *rank.predicted_memory += predicted;
  }
  rank.weights_digest = weights.text();
  if (!plan.predicted || !emulated) return;
  rank.predicted_memory = emulated->memory();
  rank.predicted_memory_bytes = rank.predicted_memory->total_bytes();
}

std::optional<SyncSummary> sync_summary(const RunEnd& end, const Plan& plan) {
  const auto pipelines = static_cast<int64_t>(plan.stages.front().ranks.size());
  if (sync_facts(end.sync).keeps_replicas_equal || pipelines == 1) return std::nullopt;
  SyncSummary sync;
  sync.rule = end.sync;
  sync.pipelines = pipelines;
  for (const auto& [size, count] : end.groups.groups) {
    sync.group_sizes.resize(static_cast<size_t>(size));
    sync.group_sizes.back() = count;
  }
  sync.columns = end.groups.columns;
  sync.longest_window_updates =
      static_cast<double>(end.groups.longest_window_updates) / static_cast<double>(pipelines);
  return sync;
}

}  // namespace

void EarlierWorkers::add(const Worker& worker, const EmulatedPlan* emulated) {
  counts += worker.counts();
  if (emulated) {
    counts += emulated->counts();
    peak_in_flight = 1;
    peak_weight_versions = std::max(peak_weight_versions, emulated->peak_versions());
  }
  stage = worker.stage().stage();
  replica = worker.replica();
  updates = 0;
  for (size_t i = 0; i < worker.stage_count(); ++i) {
    const StageReplica& each = worker.stage(i);
    peak_in_flight = std::max(peak_in_flight, each.peak_in_flight());
    peak_weight_versions = std::max(peak_weight_versions, each.versions().peak_live());
    updates = std::max(updates, each.versions().updates());
  }
}

RankSummary summary_of_rank(int64_t number, const Plan& plan, const Worker* worker, EarlierWorkers workers,
                            const MemoryMeter& memory, MeasuredTimes times, c10::Device device,
                            const EmulatedPlan* emulated) {
  if (worker) workers.add(*worker, emulated);
  RankSummary rank;
  const WorkerCounts& counts = workers.counts;
  rank.rank = number;
  rank.stage = workers.stage;
  rank.replica = workers.replica;
  rank.peak_in_flight = workers.peak_in_flight;
  rank.peak_weight_versions = workers.peak_weight_versions;
  rank.updates = workers.updates;
  rank.host = this_process().host;
  times.busy_seconds = counts.busy_seconds;
  times.cpu_seconds = std::max(0.0, times.cpu_seconds);  // a difference of clocks
  if (times.trained_seconds > 0)
    rank.busy_fraction = std::min(1.0, counts.busy_seconds / times.trained_seconds);
  rank.times = times;
  rank.receive_wait_seconds = counts.receive_wait_seconds;
  rank.sync_wait_seconds = counts.sync_wait_seconds;
  rank.peak_memory_bytes = memory.peak_bytes();
  const auto purposes = memory.peak_bytes_by_purpose();
  const auto peak = [&](MemoryPurpose purpose) { return purposes[static_cast<size_t>(purpose)]; };
  rank.memory = {peak(MemoryPurpose::kWeights),     peak(MemoryPurpose::kVersions),
                 peak(MemoryPurpose::kGradients),   peak(MemoryPurpose::kOptimizer),
                 peak(MemoryPurpose::kActivations), peak(MemoryPurpose::kMessages),
                 peak(MemoryPurpose::kOther)};
  rank.sent_bytes = counts.sent_bytes;
  if (std::isfinite(counts.largest_spread)) rank.largest_spread = counts.largest_spread;
  if (worker) add_stages(rank, *worker, emulated, plan);
  rank.device = device_text(device);
  if (const auto bytes = allocator_bytes(device)) {
    rank.allocated_bytes = bytes->peak_allocated;
    rank.reserved_bytes = bytes->peak_reserved;
  }
  const ProcessMemory process = process_memory();
  rank.peak_resident_bytes = process.peak_resident_bytes.value_or(0);
  rank.cached_bytes = process.cached_bytes.value_or(0);
  return rank;
}

std::string cuda_graphs_text(const Worker& worker) {
  bool used = false;
  std::string obstacle;
  for (size_t i = 0; i < worker.stage_count(); ++i) {
    const StageReplica& stage = worker.stage(i);
    used = used || (stage.recordings() && stage.recordings()->recorded_forwards() > 0);
    if (obstacle.empty()) obstacle = stage.recording_obstacle();
  }
  if (!used && obstacle.empty()) obstacle = "no backward had ended before the last forward began";
  if (obstacle.empty()) return "used";
  return (used ? "used, but not everywhere: " : "not used: ") + obstacle;
}

Summary write_results(const std::filesystem::path& folder, const Plan& plan, const Journal& journal,
                      const RunEnd& end) {
  Summary summary = journal.summary();
  summary.status = end.status;
  summary.world_size = end.world_size;
  summary.emulated = end.emulated;
  summary.strategy = plan.strategy;
  summary.schedule = plan.schedule;
  summary.weights = plan.weights;
  summary.cores = host_cores();
  summary.wall_seconds = end.wall_seconds;
  summary.sync = sync_summary(end, plan);
  if (plan.predicted && !end.emulated)
    summary.predicted_minibatch_seconds = plan.predicted->minibatch_seconds;
  summary.minibatch_flops = end.minibatch_flops;
  if (summary.minibatch_seconds > 0)
    summary.flops_per_second = summary.minibatch_flops / summary.minibatch_seconds;
  write_document(folder / "summary.json", summary);
  write_file(folder / "trace.json", trace_of_all(journal.traces()));
  return summary;
}

void demand_equal_replicas(const Summary& summary) {
  std::map<int64_t, const RankSummary*> first_of_stage;
  for (const RankSummary& rank : summary.ranks) {
    if (rank.weights_digest.empty()) continue;  // it had no part in the last plan
    const RankSummary& first = *first_of_stage.try_emplace(rank.stage, &rank).first->second;
    if (rank.weights_digest == first.weights_digest) continue;
    const auto words = [](const RankSummary& of) {
      return "rank " + std::to_string(of.rank) + " on " + of.host + " (" + of.weights_digest + ")";
    };
    throw NumericalError("stage " + std::to_string(rank.stage) +
                             ": its replicas ended with different weights: " + words(first) + " and " +
                             words(rank),
                         "They make the same updates from the same sums: do the hosts have the same LibTorch "
                         "and CPUs, and sound memory? Compare with pipewright-runtime verify.");
  }
}

}  // namespace pipewright
