#include "graph/summary.h"

#include <algorithm>
#include <cmath>

#include "graph/byte_fields.h"
#include "graph/limits.h"

namespace pipewright {
namespace {

const std::vector<std::string>& statuses() {
  static const std::vector<std::string> names = {"done", "interrupted", "failed"};
  return names;
}

const std::vector<ByteField<MeasuredMemory>>& measured_memory_fields() {
  static const std::vector<ByteField<MeasuredMemory>> fields = {
      {"weights_bytes", &MeasuredMemory::weights_bytes},
      {"versions_bytes", &MeasuredMemory::versions_bytes},
      {"gradients_bytes", &MeasuredMemory::gradients_bytes},
      {"optimizer_bytes", &MeasuredMemory::optimizer_bytes},
      {"activations_bytes", &MeasuredMemory::activations_bytes},
      {"messages_bytes", &MeasuredMemory::messages_bytes},
      {"other_bytes", &MeasuredMemory::other_bytes}};
  return fields;
}

const std::vector<std::pair<const char*, double EpochTimes::*>>& epoch_times() {
  static const std::vector<std::pair<const char*, double EpochTimes::*>> times = {
      {"load_seconds", &EpochTimes::load_seconds},         {"forward_seconds", &EpochTimes::forward_seconds},
      {"backward_seconds", &EpochTimes::backward_seconds}, {"update_seconds", &EpochTimes::update_seconds},
      {"reduce_seconds", &EpochTimes::reduce_seconds},     {"receive_seconds", &EpochTimes::receive_seconds},
      {"change_seconds", &EpochTimes::change_seconds},     {"cache_seconds", &EpochTimes::cache_seconds}};
  return times;
}

const std::vector<std::pair<const char*, double GenerationSummary::*>>& generation_seconds() {
  static const std::vector<std::pair<const char*, double GenerationSummary::*>> seconds = {
      {"predicted_minibatch_seconds", &GenerationSummary::predicted_minibatch_seconds},
      {"minibatch_seconds", &GenerationSummary::minibatch_seconds},
      {"last_minibatch_seconds", &GenerationSummary::last_minibatch_seconds}};
  return seconds;
}

MeasuredTimes times_from_json(JsonReader reader) {
  reader.expect({"minibatches", "trained_seconds", "busy_seconds", "load_wait_seconds", "cpu_seconds",
                 "injected_seconds"});
  MeasuredTimes times;
  times.minibatches = reader.integer("minibatches", 0, kMostCount);
  times.trained_seconds = reader.number("trained_seconds", 0, kMostSeconds);
  times.busy_seconds = reader.number("busy_seconds", 0, kMostSeconds);
  times.load_wait_seconds = reader.number("load_wait_seconds", 0, kMostSeconds);
  times.cpu_seconds = reader.number("cpu_seconds", 0, kMostSeconds);
  if (reader.has("injected_seconds"))
    times.injected_seconds = reader.number("injected_seconds", 0, kMostSeconds);
  reader.finish();
  return times;
}

Json times_to_json(const MeasuredTimes& times) {
  Json json = {{"minibatches", times.minibatches},
               {"trained_seconds", times.trained_seconds},
               {"busy_seconds", times.busy_seconds},
               {"load_wait_seconds", times.load_wait_seconds},
               {"cpu_seconds", times.cpu_seconds}};
  if (times.injected_seconds > 0) json["injected_seconds"] = times.injected_seconds;
  return json;
}

RankSummary rank_from_json(JsonReader& reader) {
  reader.expect({"rank",
                 "stage",
                 "replica",
                 "host",
                 "busy_fraction",
                 "receive_wait_seconds",
                 "sync_wait_seconds",
                 "peak_memory_bytes",
                 "predicted_memory_bytes",
                 "memory",
                 "predicted_memory",
                 "sent_bytes",
                 "peak_in_flight",
                 "peak_weight_versions",
                 "updates",
                 "weights_digest",
                 "largest_spread",
                 "device",
                 "allocated_bytes",
                 "reserved_bytes",
                 "peak_resident_bytes",
                 "cached_bytes",
                 "times",
                 "cache",
                 "cuda_graphs"});
  RankSummary rank;
  rank.rank = reader.integer("rank", 0, kMostRanks - 1);
  rank.stage = reader.integer("stage", 0, kMostRanks - 1);
  rank.replica = reader.integer("replica", 0, kMostRanks - 1);
  rank.host = reader.string("host");
  rank.busy_fraction = reader.number("busy_fraction", 0, 1);
  rank.receive_wait_seconds = reader.number("receive_wait_seconds", 0, kMostSeconds);
  rank.sync_wait_seconds = reader.number("sync_wait_seconds", 0, kMostSeconds);
  rank.peak_memory_bytes = reader.integer("peak_memory_bytes", 0, kMostBytes);
  rank.predicted_memory_bytes = reader.integer("predicted_memory_bytes", 0, kMostBytes);
  if (reader.has("memory")) rank.memory = read_byte_fields(reader.object("memory"), measured_memory_fields());
  if (reader.has("predicted_memory"))
    rank.predicted_memory = stage_memory_from_json(reader.object("predicted_memory"));
  rank.sent_bytes = reader.integer("sent_bytes", 0, kMostBytes);
  rank.peak_in_flight = reader.integer("peak_in_flight", 0, kMostCount);
  rank.peak_weight_versions = reader.integer("peak_weight_versions", 0, kMostCount);
  rank.updates = reader.integer("updates", 0, kMostCount);
  if (reader.has("largest_spread")) rank.largest_spread = reader.number("largest_spread", 0, kLargestNumber);
  if (reader.has("weights_digest")) rank.weights_digest = reader.string("weights_digest");
  if (reader.has("device")) rank.device = reader.string("device");
  if (reader.has("times")) rank.times = times_from_json(reader.object("times"));
  if (reader.has("cache")) rank.cache = CacheSummary::from_json(reader.object("cache"));
  if (reader.has("cuda_graphs")) rank.cuda_graphs = reader.string("cuda_graphs");
  if (reader.has("allocated_bytes")) rank.allocated_bytes = reader.integer("allocated_bytes", 0, kMostBytes);
  if (reader.has("reserved_bytes")) rank.reserved_bytes = reader.integer("reserved_bytes", 0, kMostBytes);
  if (reader.has("peak_resident_bytes"))
    rank.peak_resident_bytes = reader.integer("peak_resident_bytes", 0, kMostBytes);
  if (reader.has("cached_bytes")) rank.cached_bytes = reader.integer("cached_bytes", 0, kMostBytes);
  reader.finish();
  return rank;
}

Json rank_to_json(const RankSummary& rank) {
  Json json;
  json["rank"] = rank.rank;
  json["stage"] = rank.stage;
  json["replica"] = rank.replica;
  json["host"] = rank.host;
  json["busy_fraction"] = rank.busy_fraction;
  json["receive_wait_seconds"] = rank.receive_wait_seconds;
  json["sync_wait_seconds"] = rank.sync_wait_seconds;
  json["peak_memory_bytes"] = rank.peak_memory_bytes;
  json["predicted_memory_bytes"] = rank.predicted_memory_bytes;
  json["memory"] = write_byte_fields(rank.memory, measured_memory_fields());
  if (rank.predicted_memory) json["predicted_memory"] = stage_memory_to_json(*rank.predicted_memory);
  json["sent_bytes"] = rank.sent_bytes;
  json["peak_in_flight"] = rank.peak_in_flight;
  json["peak_weight_versions"] = rank.peak_weight_versions;
  json["updates"] = rank.updates;
  if (rank.largest_spread > 0) json["largest_spread"] = rank.largest_spread;
  if (!rank.weights_digest.empty()) json["weights_digest"] = rank.weights_digest;
  if (!rank.device.empty()) json["device"] = rank.device;
  if (rank.times) json["times"] = times_to_json(*rank.times);
  if (rank.cache) json["cache"] = rank.cache->to_json();
  if (!rank.cuda_graphs.empty()) json["cuda_graphs"] = rank.cuda_graphs;
  if (rank.allocated_bytes > 0) json["allocated_bytes"] = rank.allocated_bytes;
  if (rank.reserved_bytes > 0) json["reserved_bytes"] = rank.reserved_bytes;
  if (rank.peak_resident_bytes > 0) json["peak_resident_bytes"] = rank.peak_resident_bytes;
  if (rank.cached_bytes > 0) json["cached_bytes"] = rank.cached_bytes;
  return json;
}

}  // namespace

double MeasuredTimes::core_share() const {
  const double computing = busy_seconds - load_wait_seconds - injected_seconds;
  return computing > 0 ? std::min(1.0, cpu_seconds / computing) : 1;
}

CacheSummary CacheSummary::from_json(JsonReader reader) {
  reader.expect({"fetched", "deepened", "computed", "evicted", "damaged", "fetch_seconds", "compute_seconds",
                 "memory_bytes", "disk_bytes", "refused"});
  CacheSummary cache;
  cache.fetched = reader.integer("fetched", 0, kMostCount);
  cache.deepened = reader.integer("deepened", 0, kMostCount);
  cache.computed = reader.integer("computed", 0, kMostCount);
  cache.evicted = reader.integer("evicted", 0, kMostCount);
  cache.damaged = reader.integer("damaged", 0, kMostCount);
  cache.fetch_seconds = reader.number("fetch_seconds", 0, kMostSeconds);
  cache.compute_seconds = reader.number("compute_seconds", 0, kMostSeconds);
  cache.memory_bytes = reader.integer("memory_bytes", 0, kMostBytes);
  cache.disk_bytes = reader.integer("disk_bytes", 0, kMostBytes);
  if (reader.has("refused")) cache.refused = reader.string("refused");
  reader.finish();
  return cache;
}

Json CacheSummary::to_json() const {
  Json json;
  json["fetched"] = fetched;
  json["deepened"] = deepened;
  json["computed"] = computed;
  json["evicted"] = evicted;
  json["damaged"] = damaged;
  json["fetch_seconds"] = fetch_seconds;
  json["compute_seconds"] = compute_seconds;
  json["memory_bytes"] = memory_bytes;
  json["disk_bytes"] = disk_bytes;
  if (!refused.empty()) json["refused"] = refused;
  return json;
}

GenerationSummary GenerationSummary::from_json(JsonReader& reader) {
  reader.expect({"number", "first_minibatch", "plan", "reason", "ranks", "frozen_layers", "drain_seconds",
                 "move_seconds", "start_seconds", "moved_bytes", "period_minibatches",
                 "predicted_minibatch_seconds", "minibatches", "minibatch_seconds",
                 "last_minibatch_seconds"});
  GenerationSummary generation;
  generation.number = reader.integer("number", 0, kMostCount);
  generation.first_minibatch = reader.integer("first_minibatch", 0, kMostCount);
  generation.plan = reader.string("plan");
  generation.reason = reader.string("reason");
  generation.ranks = reader.integer("ranks", 1, kMostRanks);
  if (reader.has("frozen_layers"))
    generation.frozen_layers = reader.integer("frozen_layers", 0, kMostFrozenLayers);
  generation.drain_seconds = reader.number("drain_seconds", 0, kMostSeconds);
  generation.move_seconds = reader.number("move_seconds", 0, kMostSeconds);
  generation.start_seconds = reader.number("start_seconds", 0, kMostSeconds);
  generation.moved_bytes = reader.integer("moved_bytes", 0, kMostBytes);
  if (reader.has("period_minibatches"))
    generation.period_minibatches = reader.integer("period_minibatches", 1, kMostCount);
  if (reader.has("minibatches")) generation.minibatches = reader.integer("minibatches", 0, kMostCount);
  for (const auto& [key, seconds] : generation_seconds())
    if (reader.has(key)) generation.*seconds = reader.number(key, 0, kMostSeconds);
  reader.finish();
  return generation;
}

Json GenerationSummary::to_json() const {
  Json json;
  json["number"] = number;
  json["first_minibatch"] = first_minibatch;
  json["plan"] = plan;
  json["reason"] = reason;
  json["ranks"] = ranks;
  if (frozen_layers > 0) json["frozen_layers"] = frozen_layers;
  json["drain_seconds"] = drain_seconds;
  json["move_seconds"] = move_seconds;
  json["start_seconds"] = start_seconds;
  json["moved_bytes"] = moved_bytes;
  if (period_minibatches > 1) json["period_minibatches"] = period_minibatches;
  if (minibatches > 0) json["minibatches"] = minibatches;
  for (const auto& [key, seconds] : generation_seconds())
    if (this->*seconds > 0) json[key] = this->*seconds;
  return json;
}

RecoverySummary RecoverySummary::from_json(JsonReader& reader) {
  reader.expect({"attempt", "next_minibatch", "again_minibatches", "reason", "from", "ranks", "seconds"});
  RecoverySummary recovery;
  recovery.attempt = reader.integer("attempt", 1, kMostCount);
  recovery.next_minibatch = reader.integer("next_minibatch", 0, kMostCount);
  recovery.again_minibatches = reader.integer("again_minibatches", 0, kMostCount);
  recovery.reason = reader.string("reason");
  recovery.from = reader.string_one_of("from", {"memory", "checkpoint", "start"});
  recovery.ranks = reader.integer("ranks", 1, kMostRanks);
  recovery.seconds = reader.number("seconds", 0, kMostSeconds);
  reader.finish();
  return recovery;
}

Json RecoverySummary::to_json() const {
  Json json;
  json["attempt"] = attempt;
  json["next_minibatch"] = next_minibatch;
  json["again_minibatches"] = again_minibatches;
  json["reason"] = reason;
  json["from"] = from;
  json["ranks"] = ranks;
  json["seconds"] = seconds;
  return json;
}

EpochTimes& EpochTimes::operator+=(const EpochTimes& other) {
  for (const auto& [key, seconds] : epoch_times()) this->*seconds += other.*seconds;
  return *this;
}

EpochSummary EpochSummary::from_json(JsonReader& reader) {
  reader.expect({"epoch", "minibatches", "plan", "frozen_layers", "ranks", "update_samples", "learning_rate",
                 "seconds", "samples_per_second", "times", "fetched", "deepened", "computed", "cache_bytes"});
  EpochSummary epoch;
  epoch.epoch = reader.integer("epoch", 0, kMostCount);
  epoch.minibatches = reader.integer("minibatches", 0, kMostCount);
  epoch.plan = reader.string("plan");
  epoch.frozen_layers = reader.integer("frozen_layers", 0, kMostFrozenLayers);
  epoch.ranks = reader.integer("ranks", 1, kMostRanks);
  epoch.update_samples = reader.integer("update_samples", 0, kMostCount);
  epoch.learning_rate = reader.number("learning_rate", 0, kLargestNumber);
  epoch.seconds = reader.number("seconds", 0, kMostSeconds);
  epoch.samples_per_second = reader.number("samples_per_second", 0, kLargestNumber);
  JsonReader times = reader.object("times");
  std::vector<std::string> keys;
  for (const auto& [key, seconds] : epoch_times()) keys.emplace_back(key);
  times.expect(keys);
  for (const auto& [key, seconds] : epoch_times()) epoch.times.*seconds = times.number(key, 0, kMostSeconds);
  times.finish();
  epoch.fetched = reader.integer("fetched", 0, kMostCount);
  epoch.deepened = reader.integer("deepened", 0, kMostCount);
  epoch.computed = reader.integer("computed", 0, kMostCount);
  epoch.cache_bytes = reader.integer("cache_bytes", 0, kMostBytes);
  reader.finish();
  return epoch;
}

Json EpochSummary::to_json() const {
  Json json;
  json["epoch"] = epoch;
  json["minibatches"] = minibatches;
  json["plan"] = plan;
  json["frozen_layers"] = frozen_layers;
  json["ranks"] = ranks;
  json["update_samples"] = update_samples;
  json["learning_rate"] = learning_rate;
  json["seconds"] = seconds;
  json["samples_per_second"] = samples_per_second;
  for (const auto& [key, of] : epoch_times()) json["times"][key] = times.*of;
  json["fetched"] = fetched;
  json["deepened"] = deepened;
  json["computed"] = computed;
  json["cache_bytes"] = cache_bytes;
  return json;
}

SyncSummary SyncSummary::from_json(JsonReader reader) {
  reader.expect({"rule", "pipelines", "group_sizes", "columns", "longest_window_updates"});
  SyncSummary sync;
  sync.rule = reader.string("rule");
  sync.pipelines = reader.integer("pipelines", 1, kMostRanks);
  sync.group_sizes = reader.integers("group_sizes", 0, kMostCount);
  sync.columns = reader.integer("columns", 0, kMostCount);
  sync.longest_window_updates = reader.number("longest_window_updates", 0, kLargestNumber);
  reader.finish();
  return sync;
}

Json SyncSummary::to_json() const {
  Json json;
  json["rule"] = rule;
  json["pipelines"] = pipelines;
  json["group_sizes"] = group_sizes;
  json["columns"] = columns;
  json["longest_window_updates"] = longest_window_updates;
  return json;
}

// Version 1 called the seconds of CPU time `processor_seconds`.
void Summary::upgrade(Json& json) {
  if (!json.is_object() || json.value("schema", Json()) != "pipewright.summary/1") return;
  json["schema"] = kSchema;
  if (!json.contains("ranks") || !json["ranks"].is_array()) return;
  for (Json& rank : json["ranks"]) {
    if (!rank.is_object() || !rank.contains("times") || !rank["times"].is_object()) continue;
    Json& times = rank["times"];
    const auto old = times.find("processor_seconds");
    if (old == times.end() || times.contains("cpu_seconds")) continue;
    Json seconds = *old;
    times.erase(old);
    times["cpu_seconds"] = std::move(seconds);
  }
}

Summary Summary::from_json(JsonReader& reader) {
  reader.expect({"schema",
                 "status",
                 "world_size",
                 "emulated",
                 "strategy",
                 "schedule",
                 "weights",
                 "minibatches",
                 "samples",
                 "first_minibatch",
                 "cores",
                 "wall_seconds",
                 "minibatch_seconds",
                 "samples_per_second",
                 "predicted_minibatch_seconds",
                 "minibatch_flops",
                 "flops_per_second",
                 "train_loss",
                 "evaluation",
                 "generations",
                 "recoveries",
                 "epochs",
                 "sync",
                 "ranks"});
  Summary summary;
  summary.status = reader.string_one_of("status", statuses());
  summary.world_size = reader.integer("world_size", 1, kMostRanks);
  if (reader.has("emulated")) summary.emulated = reader.boolean("emulated");
  summary.strategy = reader.string("strategy");
  summary.schedule = reader.string("schedule");
  summary.weights = reader.string("weights");
  summary.minibatches = reader.integer("minibatches", 0, kMostCount);
  summary.samples = reader.integer("samples", 0, kMostCount);
  if (reader.has("first_minibatch"))
    summary.first_minibatch = reader.integer("first_minibatch", 0, summary.minibatches);
  summary.cores = reader.integer("cores", 0, kMostCount);
  summary.wall_seconds = reader.number("wall_seconds", 0, kMostSeconds);
  summary.minibatch_seconds = reader.number("minibatch_seconds", 0, kMostSeconds);
  summary.samples_per_second = reader.number("samples_per_second", 0, kLargestNumber);
  summary.predicted_minibatch_seconds = reader.number("predicted_minibatch_seconds", 0, kMostSeconds);
  if (reader.has("minibatch_flops"))
    summary.minibatch_flops = reader.number("minibatch_flops", 0, kLargestNumber);
  if (reader.has("flops_per_second"))
    summary.flops_per_second = reader.number("flops_per_second", 0, kLargestNumber);
  summary.train_loss = reader.number_or_null("train_loss", -kLargestNumber, kLargestNumber);
  if (reader.has("evaluation") && !reader.raw("evaluation").is_null()) {
    JsonReader entry = reader.object("evaluation");
    entry.expect({"loss", "top1", "samples", "top5", "exact_match", "f1"});
    EvaluationSummary evaluation;
    evaluation.loss = entry.number_or_null("loss", -kLargestNumber, kLargestNumber);
    evaluation.top1 = entry.number_or_null("top1", 0, 1);
    evaluation.samples = entry.integer("samples", 0, kMostCount);
    if (entry.has("exact_match")) evaluation.exact_match = entry.number("exact_match", 0, 1);
    if (entry.has("f1")) evaluation.f1 = entry.number("f1", 0, 1);
    if (entry.has("top5")) evaluation.top5 = entry.number("top5", 0, 1);
    entry.finish();
    summary.evaluation = evaluation;
  }
  if (reader.has("generations")) {
    for (JsonReader& generation : reader.objects("generations"))
      summary.generations.push_back(GenerationSummary::from_json(generation));
  }
  if (reader.has("recoveries")) {
    for (JsonReader& recovery : reader.objects("recoveries"))
      summary.recoveries.push_back(RecoverySummary::from_json(recovery));
  }
  if (reader.has("epochs")) {
    for (JsonReader& epoch : reader.objects("epochs"))
      summary.epochs.push_back(EpochSummary::from_json(epoch));
  }
  if (reader.has("sync")) summary.sync = SyncSummary::from_json(reader.object("sync"));
  for (JsonReader& rank : reader.objects("ranks")) summary.ranks.push_back(rank_from_json(rank));
  return summary;
}

Json Summary::to_json() const {
  Json json;
  json["status"] = status;
  json["world_size"] = world_size;
  if (emulated) json["emulated"] = true;
  json["strategy"] = strategy;
  json["schedule"] = schedule;
  json["weights"] = weights;
  json["minibatches"] = minibatches;
  json["samples"] = samples;
  if (first_minibatch > 0) json["first_minibatch"] = first_minibatch;
  json["cores"] = cores;
  json["wall_seconds"] = wall_seconds;
  json["minibatch_seconds"] = minibatch_seconds;
  json["samples_per_second"] = samples_per_second;
  json["predicted_minibatch_seconds"] = predicted_minibatch_seconds;
  json["minibatch_flops"] = minibatch_flops;
  json["flops_per_second"] = flops_per_second;
  json["train_loss"] = finite_or_null(train_loss);
  json["evaluation"] = nullptr;
  if (evaluation) {
    json["evaluation"] = {{"loss", finite_or_null(evaluation->loss)},
                          {"top1", finite_or_null(evaluation->top1)},
                          {"samples", evaluation->samples}};
    if (std::isfinite(evaluation->exact_match)) {
      json["evaluation"]["exact_match"] = evaluation->exact_match;
      json["evaluation"]["f1"] = evaluation->f1;
    }
    if (std::isfinite(evaluation->top5)) json["evaluation"]["top5"] = evaluation->top5;
  }
  for (const GenerationSummary& generation : generations) json["generations"].push_back(generation.to_json());
  for (const RecoverySummary& recovery : recoveries) json["recoveries"].push_back(recovery.to_json());
  for (const EpochSummary& epoch : epochs) json["epochs"].push_back(epoch.to_json());
  if (sync) json["sync"] = sync->to_json();
  json["ranks"] = Json::array();
  for (const RankSummary& rank : ranks) json["ranks"].push_back(rank_to_json(rank));
  return json;
}

bool GenerationSummary::is_change() const {
  return reason != "start" && reason != "resume" && !reason.starts_with(kLossReason);
}

bool Summary::counts_several_plans() const {
  // A process counts from 0.
  return generations.size() > 1 && generations.back().is_change();
}

bool Summary::ranks_share_cores() const {
  const auto on_host = std::count_if(ranks.begin(), ranks.end(), [this](const RankSummary& rank) {
    return rank.host == ranks.front().host;
  });
  return cores > 0 && (ranks.empty() ? world_size : on_host) > cores;
}

void Summary::validate(const std::string& where) const {
  for (size_t i = 0; i < ranks.size(); ++i) {
    const std::string path = "ranks[" + std::to_string(i) + "].rank";
    check_range(where, path, ranks[i].rank, 0, world_size - 1);
    if (i > 0 && ranks[i].rank <= ranks[i - 1].rank) {
      fail_document(where, path,
                    "got " + std::to_string(ranks[i].rank) + " after " + std::to_string(ranks[i - 1].rank) +
                        ", expected ranks in ascending order");
    }
  }
}

}  // namespace pipewright
