#include "optimizer/baselines/sailor.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/units.h"
#include "optimizer/cost/formulas.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

constexpr double kBytesOfMib = 1048576, kGiga = 1e9;
constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostSamples = 1 << 20;  // of a batch: each microbatch is simulated
constexpr const char* kProfiles = "profiles.json";
constexpr const char* kLayers = "llm_info.json";
constexpr const char* kNetwork = "network/multizone_bandwidths_het.json";
constexpr const char* kPlanPrefix = "plan_config_";

/// Plans do not say of which model they are; their folders do.
struct GroupModel {
  const char* group;
  const char* model;
};
constexpr GroupModel kGroups[] = {
    {"clariden/GPT-NEO", "GPT-Neo-2.7"}, {"clariden/OPT-350", "OPT-350"}, {"mit", "OPT-350"}};

std::string model_of(const std::string& group, const std::string& where) {
  std::vector<std::string> known;
  for (const GroupModel& row : kGroups) {
    if (group == row.group) return row.model;
    known.push_back(in_quotes(row.group));
  }
  throw InputError(where + ": its folder is " + in_quotes(group) + "; expected one of " + join(known, ", "),
                   "Plans do not name their model, so it must be known which one a folder is of.");
}

struct Replica {
  std::string gpu, zone;
  int64_t gpus = 1;  // tensor-parallel
};

struct SailorStage {
  int64_t first_layer = 0, end_layer = 0;
  std::vector<Replica> replicas;
};

struct SailorPlan {
  std::vector<SailorStage> stages;
  int64_t microbatch_samples = 1, batch_samples = 1;

  int64_t layers() const { return stages.back().end_layer; }
  int64_t replicas() const { return static_cast<int64_t>(stages[0].replicas.size()); }
  int64_t microbatches() const { return batch_samples / microbatch_samples; }
};

// --- reading a plan ---

/// [[[gpu, gpus, zone]], gpus]
Replica read_replica(const Json& json, const JsonReader& reader) {
  const auto refuse = [&](const std::string& what) {
    reader.fail("tmp_per_stage", "a replica is " + what + "; expected [[[GPU, number, zone]], number]");
  };
  if (!json.is_array() || json.size() != 2 || !json[0].is_array() || !json[1].is_number_integer())
    refuse(described(json));
  if (json[0].size() != 1 || !json[0][0].is_array() || json[0][0].size() != 3)
    refuse("on " + std::to_string(json[0].size()) + " kinds of nodes");
  const Json& node = json[0][0];
  if (!node[0].is_string() || !node[1].is_number_integer() || !node[2].is_string()) refuse(described(node));
  Replica replica{node[0].get<std::string>(), node[2].get<std::string>(), json[1].get<int64_t>()};
  check_range(reader.where(), reader.place("tmp_per_stage"), replica.gpus, 1, kMostRanks);
  if (node[1] != json[1]) refuse("on more GPUs than it uses");
  return replica;
}

std::vector<SailorStage> read_stages(JsonReader* reader) {
  const int64_t count = reader->integer("num_stages", 1, kMostRanks);
  const std::vector<int64_t> replicas = reader->integers("dp", 1, kMostRanks);
  const Json& layers = reader->raw("layers_per_stage");
  const Json& nodes = reader->raw("tmp_per_stage");
  const auto is_list_of_stages = [&](const Json& json) {
    return json.is_array() && static_cast<int64_t>(json.size()) == count &&
           std::all_of(json.begin(), json.end(), [](const Json& s) { return s.is_array() && !s.empty(); });
  };
  for (const auto& [key, json] : {std::pair{"layers_per_stage", &layers}, std::pair{"tmp_per_stage", &nodes}})
    if (!is_list_of_stages(*json)) reader->fail(key, "it is no list of num_stages lists");
  if (static_cast<int64_t>(replicas.size()) != count)
    reader->fail("dp", "it is of " + std::to_string(replicas.size()) + " stages, num_stages says otherwise");
  std::vector<SailorStage> stages;
  for (int64_t s = 0; s < count; ++s) {
    const auto at = static_cast<size_t>(s);
    SailorStage stage;
    stage.first_layer = stages.empty() ? 0 : stages.back().end_layer;
    stage.end_layer = stage.first_layer + static_cast<int64_t>(layers[at].size());
    for (const Json& replica : nodes[at]) stage.replicas.push_back(read_replica(replica, *reader));
    if (static_cast<int64_t>(stage.replicas.size()) != replicas[at])
      reader->fail("dp", "stage " + std::to_string(s) + " has other replicas in tmp_per_stage");
    if (replicas[at] != replicas[0]) reader->fail("dp", "stages have different numbers of replicas");
    stages.push_back(std::move(stage));
  }
  reader->finish();
  return stages;
}

SailorPlan read_plan(JsonReader* top) {
  SailorPlan plan;
  std::vector<JsonReader> pipelines = top->objects("pipeline_list");
  if (pipelines.size() != 1) top->fail("pipeline_list", "expected one pipeline");
  plan.stages = read_stages(&pipelines[0]);
  plan.microbatch_samples = top->integer("mbs", 1, kMostSamples);
  plan.batch_samples = top->integer("gbs", 1, kMostSamples);
  if (plan.batch_samples % (plan.microbatch_samples * plan.replicas()) != 0)
    top->fail("gbs", "it is no multiple of replicas x mbs");
  const int64_t nodes = top->integer("N", 1, kMostRanks);
  if (nodes != plan.replicas() * static_cast<int64_t>(plan.stages.size()))
    top->fail("N", "it is not the number of replicas of all stages");
  top->string("zone");
  return plan;
}

// --- what it takes ---

/// The tables' rows for one plan of a model.
class SailorPrices {
 public:
  SailorPrices(const SailorTables& tables, std::string model, const SailorPlan& plan)
      : tables_(tables), model_(std::move(model)), plan_(plan) {}

  int64_t layers_of_model() const {
    JsonReader layers = bytes_table(plan_.stages[0].replicas[0].gpus);
    int64_t count = 0;
    while (count < kMostLayers && layers.has(std::to_string(count))) ++count;
    return count;
  }

  /// Of the pipeline of replica q of every stage.
  std::vector<StageTimes> pipeline(size_t q) const {
    std::vector<StageTimes> times;
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      const SailorStage& stage = plan_.stages[s];
      StageTimes of_stage = compute_times(stage, stage.replicas[q]);
      of_stage.reduce_seconds = reduce_seconds(stage);
      if (s + 1 < plan_.stages.size())
        of_stage.send_activation_seconds =
            cut_seconds(stage, q, stage.replicas[q], plan_.stages[s + 1].replicas[q]);
      if (s > 0) {
        const SailorStage& before = plan_.stages[s - 1];
        of_stage.send_gradient_seconds = cut_seconds(before, q, stage.replicas[q], before.replicas[q]);
      }
      times.push_back(of_stage);
    }
    return times;
  }

 private:
  static std::string text(int64_t number) { return std::to_string(number); }

  JsonReader bytes_table(int64_t gpus) const {
    return JsonReader(tables_.layers, kLayers).object(model_).object(text(gpus));
  }

  double bytes(int64_t gpus, int64_t layer, const char* key) const {
    return bytes_table(gpus).object(text(layer)).number(key, 0, static_cast<double>(kMostBytes));
  }

  StageTimes compute_times(const SailorStage& stage, const Replica& replica) const {
    JsonReader layers = JsonReader(tables_.profiles, kProfiles)
                            .object(model_)
                            .object(replica.gpu)
                            .object(text(plan_.microbatch_samples))
                            .object(text(replica.gpus));
    StageTimes times;
    for (int64_t layer = stage.first_layer; layer < stage.end_layer; ++layer) {
      const std::string key = text(layer);
      const std::vector<double> seconds = numbers(&layers, key, 3);
      for (const double each : seconds) check_range(kProfiles, layers.place(key), each, 0, kMostSeconds);
      times.forward_seconds += seconds[0];
      times.backward_seconds += seconds[1];
      times.step_seconds += seconds[2];
    }
    return times;
  }

  /// What crosses the cut behind `stage`, a microbatch, either way.
  double cut_seconds(const SailorStage& stage, size_t q, const Replica& from, const Replica& to) const {
    const double sent = static_cast<double>(plan_.microbatch_samples) *
                        bytes(stage.replicas[q].gpus, stage.end_layer - 1, "act_output_bytes");
    return sent == 0 ? 0 : link_seconds(sent, bytes_per_second(from, to, sent));
  }

  double reduce_seconds(const SailorStage& stage) const {
    const int64_t replicas = plan_.replicas();
    double seconds = 0;
    for (const Replica& from : stage.replicas) {
      double all = 0;
      for (int64_t layer = stage.first_layer; layer < stage.end_layer; ++layer)
        all += bytes(from.gpus, layer, "params_bytes");
      all *= static_cast<double>(from.gpus);
      if (all == 0) continue;
      for (const Replica& to : stage.replicas) {
        if (&from == &to) continue;
        const double rate = bytes_per_second(from, to, all / static_cast<double>(replicas));
        seconds = std::max(seconds, all_reduce_link_seconds(all, crossing_part(1, replicas), rate));
      }
    }
    return seconds;
  }

  double bytes_per_second(const Replica& from, const Replica& to, double message_bytes) const {
    JsonReader rates = JsonReader(tables_.network, kNetwork)
                           .object(from.zone)
                           .object(from.gpu)
                           .object(text(from.gpus))
                           .object(to.zone)
                           .object(to.gpu);
    const std::string key = text(to.gpus);
    const Json& row = rates.raw(key);
    if (!row.is_array() || row.size() != 2) rates.fail(key, "expected [[3 numbers], number]");
    const std::vector<double> curve = numbers_of(row[0], rates, key, 3);
    const double size = std::log2(message_bytes / kBytesOfMib);
    const double rate = kGiga * ((curve[0] * size + curve[1]) * size + curve[2]);
    if (!(rate > 0) || rate > kMostBytesPerSecond)
      rates.fail(key,
                 "a message of " + text(std::llround(message_bytes)) + " bytes has no rate by this curve");
    return rate;
  }

  static std::vector<double> numbers(JsonReader* reader, const std::string& key, size_t count) {
    return numbers_of(reader->raw(key), *reader, key, count);
  }
  static std::vector<double> numbers_of(const Json& json, const JsonReader& reader, const std::string& key,
                                        size_t count) {
    if (!json.is_array() || json.size() != count ||
        !std::all_of(json.begin(), json.end(), [](const Json& each) { return each.is_number(); }))
      reader.fail(key, "got " + described(json) + "; expected " + std::to_string(count) + " numbers");
    return json.get<std::vector<double>>();
  }

  const SailorTables& tables_;
  const std::string model_;
  const SailorPlan& plan_;
};

std::string why_unusable(const SailorPlan& plan, int64_t layers_of_model) {
  const auto stages = static_cast<int64_t>(plan.stages.size());
  if (plan.layers() != layers_of_model)
    return std::to_string(plan.layers()) + " layers, its model has " + std::to_string(layers_of_model);
  const int64_t each = plan.microbatches() / plan.replicas();
  if (stages > 1 && each < stages)
    return "microbatches: " + std::to_string(each) + " for " + std::to_string(stages) + " stages";
  return "";
}

std::string full_name(const PublishedRun& run) { return run.group + "/" + run.name; }

}  // namespace

SailorRun parse_sailor_run(const std::string& text, const std::string& where, const std::string& group,
                           const SailorTables& tables) {
  const std::string model = model_of(group, where);
  const Json json = parse_json(text, where);
  JsonReader top(json, where);
  const SailorPlan plan = read_plan(&top);
  SailorRun result;
  result.run.group = group;
  result.run.measured_seconds = top.number("real", 0, kMostSeconds);
  if (result.run.measured_seconds == 0) top.fail("real", "it is 0");
  result.exchange_seconds = top.number("red_grads", 0, kMostSeconds);
  result.memory_bytes = top.integer("max_mem", 0, kMostBytes);
  top.finish();

  PipelineShape& shape = result.run.shape;
  const size_t stages = plan.stages.size();
  shape.replicas.assign(stages, plan.replicas());
  for (size_t s = 0; s < stages; ++s) shape.in_flight.push_back(static_cast<int64_t>(stages - s));
  shape.weights = WeightRule::kFlush;
  shape.microbatches = plan.microbatches();

  const SailorPrices prices(tables, model, plan);
  result.run.unusable = why_unusable(plan, prices.layers_of_model());
  if (!result.run.unusable.empty()) return result;
  for (int64_t q = 0; q < plan.replicas(); ++q) {
    std::vector<StageTimes> times = prices.pipeline(static_cast<size_t>(q));
    auto& known = result.run.pipelines;
    if (std::find(known.begin(), known.end(), times) == known.end()) known.push_back(std::move(times));
  }
  return result;
}

void mark_copies(std::vector<SailorRun>* runs) {
  const auto same = [](const SailorRun& a, const SailorRun& b) {
    const auto measured = [](const SailorRun& r) {
      return std::tuple(r.run.measured_seconds, r.exchange_seconds, r.memory_bytes);
    };
    return measured(a) == measured(b);
  };
  // What was measured has an exchange in it, and only this one has anything to exchange.
  const auto is_original = [](const SailorRun& r) {
    return r.run.shape.replicas[0] > 1 && r.exchange_seconds >= 0.01 * r.run.measured_seconds;
  };
  for (SailorRun& run : *runs) {
    std::vector<const SailorRun*> others, originals;
    for (const SailorRun& each : *runs) {
      if (&each == &run || !same(each, run)) continue;
      others.push_back(&each);
      if (is_original(each)) originals.push_back(&each);
    }
    if (others.empty() || !run.run.unusable.empty() || (is_original(run) && originals.empty())) continue;
    if (is_original(run) || originals.size() != 1)
      run.run.unusable = "the same measurements as " + full_name(others[0]->run);
    else
      run.run.unusable = "measurements of " + full_name(originals[0]->run) + ": they have an exchange of " +
                         format_seconds(run.exchange_seconds) + " in them, and this plan has no replicas";
  }
}

std::vector<PublishedRun> read_sailor(const fs::path& folder) {
  const SailorTables tables{read_json_file(folder / kProfiles), read_json_file(folder / kLayers),
                            read_json_file(folder / kNetwork)};
  const fs::path plans = folder / "plans";
  if (!fs::is_directory(plans))
    throw InputError(plans.string() + ": no such folder",
                     "Give the folder with Sailor's plans/, profiles.json, llm_info.json and network/.");
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::recursive_directory_iterator(plans, fs::directory_options::skip_permission_denied))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<SailorRun> runs;
  for (const fs::path& file : files) {
    const std::string group = fs::relative(file.parent_path().parent_path(), plans).generic_string();
    runs.push_back(parse_sailor_run(read_file(file), file.string(), group, tables));
    const std::string stem = file.stem().string();
    const std::string prefix = kPlanPrefix;
    runs.back().run.name = stem.rfind(prefix, 0) == 0 ? stem.substr(prefix.size()) : stem;
  }
  if (runs.empty()) throw InputError(plans.string() + ": there are no plans in it", "");
  mark_copies(&runs);
  std::vector<PublishedRun> published;
  for (SailorRun& run : runs) published.push_back(std::move(run.run));
  return published;
}

}  // namespace pipewright
