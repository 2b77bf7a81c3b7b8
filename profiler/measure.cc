#include "profiler/measure.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/statistics.h"
#include "graph/units.h"
#include "interference/core_features.h"
#include "models/device/device.h"
#include "profiler/bench.h"
#include "profiler/crowd.h"
#include "profiler/machine.h"
#include "profiler/measured_rounds.h"
#include "profiler/other_load.h"
#include "profiler/part_plan.h"
#include "profiler/repeats.h"
#include "profiler/thread_count.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastCrowdSeconds = 2;

/// In a captured graph kernels follow each other in that part of the time that they take where the host
/// launches them one by one: 0.25 of 1.0 us on an H200.
constexpr double kCapturedGap = 0.25;

/// What the device itself takes, in place of times in which it may have waited for the host.
void take_kernels(const KernelSamples& kernels, double gap_seconds, ProfiledNode* node) {
  const double gaps_forward = median(kernels.forward_kernels) * gap_seconds;
  const double gaps_backward = median(kernels.backward_kernels) * gap_seconds;
  const double backward = median(kernels.backward) + kCapturedGap * gaps_backward;
  const double input_part = std::min(backward, median(kernels.input_part) + kCapturedGap * gaps_backward);
  // Which parts there are is as they were found by time.
  if (node->backward_weight_seconds <= 0)
    node->backward_input_seconds = backward;
  else if (node->backward_input_seconds > 0)
    node->backward_input_seconds = input_part;
  node->backward_weight_seconds = backward - node->backward_input_seconds;
  node->forward_seconds = median(kernels.forward) + kCapturedGap * gaps_forward;
  node->forward_gap_seconds = (1 - kCapturedGap) * gaps_forward;
  node->backward_gap_seconds = (1 - kCapturedGap) * gaps_backward;
}

/// But for its saved and its workspace bytes, which later parts have a say in.
ProfiledNode profiled_node(const Graph& graph, const Part& part, size_t i, const Bench& bench,
                           const Samples& samples, bool on_host) {
  const Node& node = graph.nodes[part.begin + i];
  const Segment& single = bench.single(i);
  ProfiledNode profiled;
  profiled.name = node.name;
  profiled.layer = node.layer;
  profiled.inputs = single.inputs();
  // What every stage computes itself crosses no cut.
  const bool stays =
      std::find(graph.everywhere.begin(), graph.everywhere.end(), node.name) != graph.everywhere.end();
  for (const auto& name : node.outputs)
    profiled.outputs.push_back({name, stays ? 0 : graph.computed_type(name).bytes()});
  profiled.parameters = single.parameters();

  bool trains = false;
  for (const auto& parameter : graph.parameters) {
    if (std::find(profiled.parameters.begin(), profiled.parameters.end(), parameter.name) ==
        profiled.parameters.end())
      continue;
    profiled.parameter_bytes += parameter.type.bytes();
    if (!bench.is_trainable(parameter.name)) continue;
    profiled.trainable_parameter_bytes += parameter.type.bytes();
    trains = true;
  }
  for (const auto& buffer : graph.buffers)
    if (std::find(single.buffers().begin(), single.buffers().end(), buffer.name) != single.buffers().end())
      profiled.buffer_bytes += buffer.type.bytes();
  const bool feeds_back = std::any_of(profiled.inputs.begin(), profiled.inputs.end(),
                                      [&](const std::string& name) { return bench.has_gradient(name); });

  profiled.forward_seconds = median(samples.forward);
  const double backward = median(samples.backward);
  if (!trains)
    profiled.backward_input_seconds = backward;
  else if (feeds_back)
    profiled.backward_input_seconds = std::min(backward, median(samples.input_part));
  profiled.backward_weight_seconds = backward - profiled.backward_input_seconds;
  std::vector<double> sums = samples.forward;
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += samples.backward[i];
  profiled.spread = relative_spread(sums);
  if (!on_host) {
    profiled.forward_launch_seconds = median(samples.forward_launch);
    profiled.backward_launch_seconds = median(samples.backward_launch);
  }
  return profiled;
}

/// In half of the memory that is free: weights, gradients, momentum and two further sets, and what is saved.
int64_t others_that_fit(const std::vector<ProfiledNode>& nodes) {
  double bytes = 1;
  for (const ProfiledNode& node : nodes)
    bytes += static_cast<double>(5 * node.parameter_bytes + 2 * node.saved_bytes);  // two in flight
  const double free_bytes =
      static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return static_cast<int64_t>(free_bytes / 2 / bytes);
}

/// Of what the device has free: the rest is for libraries and for what grows meanwhile.
constexpr double kFreeShare = 0.8;

PartLimit limit_of(const MeasureOptions& options) {
  if (options.memory_bytes) return {{*options.memory_bytes, "are allowed (--memory)"}, true};
  MemoryThere there = memory_there(options.device);
  there.bytes = static_cast<int64_t>(kFreeShare * static_cast<double>(there.bytes));
  there.what = "of what is free may be used";
  return {there, false};
}

/// "7", or of several parts "5 to 9".
class Counts {
 public:
  void add(int64_t count) {
    least_ = least_ < 0 ? count : std::min(least_, count);
    most_ = std::max(most_, count);
  }
  std::string text() const {
    return least_ == most_ ? std::to_string(most_) : std::to_string(least_) + " to " + std::to_string(most_);
  }

 private:
  int64_t least_ = -1, most_ = -1;
};

/// Goes through the parts, each while its weights and values are there, and adds it to the profile.
class PartByPart {
 public:
  /// Borrows all of it.
  PartByPart(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options,
             Profile& profile)
      : model_(model),
        graph_(model.graph),
        inputs_(inputs),
        options_(options),
        profile_(profile),
        limit_(limit_of(options)),
        parts_(plan_parts(model, inputs, options.seed, options.device, limit_)),
        last_reader_(last_readers(graph_)) {
    profile_.whole.update.emplace();
    if (options_.device.is_cpu()) return;
    profile_.whole.forward_launch_seconds = profile_.whole.backward_launch_seconds = 0;
    profile_.whole.host_cores = static_cast<int64_t>(cores_of_process().size());
    profile_.whole.input_bytes = 0;
    for (const at::Tensor& input : inputs)
      *profile_.whole.input_bytes += static_cast<int64_t>(input.nbytes());
  }

  void run() {
    for (; number_ < parts_.size(); ++number_) measure_part(parts_[number_]);
    for (size_t i = 0; i < profile_.nodes.size(); ++i) {
      ProfiledNode& node = profile_.nodes[i];
      node.workspace_bytes =
          std::max({int64_t{0}, peaks_.forward_bytes[i] - node.saved_bytes, peaks_.backward_bytes[i]});
    }
    if (crowd_) profile_.whole.crowd = crowd_->factors(others_ + 1);
    if (sums_ > 0 && known_) profile_.whole.known_within = *known_ / sums_;
  }

  size_t parts() const { return parts_.size(); }
  std::string warmup() const { return warmup_.text(); }
  std::string repeats() const { return repeats_.text(); }
  bool settled() const { return settled_; }
  /// That other programs had meanwhile.
  std::optional<double> other_cores() const { return load_.cores(); }

 private:
  void measure_part(const Part& part) {
    const auto make_bench = [&, arriving = crossing_] {
      auto bench = std::make_unique<Bench>(model_, part, arriving, inputs_, options_.seed, options_.device);
      bench->update_by(options_.optimizer);
      return bench;
    };
    const std::unique_ptr<Bench> bench = make_bench();
    bench->find_gradient_flow();
    const std::vector<std::vector<std::string>> keeps = bench->keeps();
    SavedPass saved = bench->saved();
    NodePeaks peaks = bench->peaks();
    if (parts_.size() == 1) {
      if (const auto allocated = bench->allocated()) {
        profile_.whole.allocated_bytes = allocated->pass_bytes;
        profile_.whole.library_bytes = allocated->library_bytes;
      }
    }
    MeasuredRounds rounds(*bench, round_options());
    rounds.run();

    std::vector<ProfiledNode> nodes;
    for (size_t i = 0; i < bench->size(); ++i) {
      nodes.push_back(profiled_node(graph_, part, i, *bench, rounds.node(i), options_.device.is_cpu()));
      if (!rounds.kernels().empty()) take_kernels(rounds.kernels()[i], rounds.gap_seconds(), &nodes.back());
      nodes.back().saved_bytes = saved.bytes[i];
      nodes.back().keeps = keeps[i];
    }
    add_whole(rounds);
    profile_.whole.update->copied_bytes += static_cast<double>(bench->copied_bytes());
    report_part(nodes, rounds.whole());
    add_crowd(*bench, make_bench, nodes, rounds.repeats());
    const auto append = [](auto& all, auto& more) { all.insert(all.end(), more.begin(), more.end()); };
    append(profile_.nodes, nodes);
    append(peaks_.forward_bytes, peaks.forward_bytes);
    append(peaks_.backward_bytes, peaks.backward_bytes);
    go_past(saved, last_reader_, part.end, crossing_,
            [&](size_t node, int64_t bytes) { profile_.nodes[node].saved_bytes += bytes; });
  }

  RoundOptions round_options() const {
    RoundOptions rounds;
    rounds.warmup = options_.warmup;
    rounds.settles = !options_.device.is_cpu();
    rounds.repeats = options_.repeats;
    const auto parts = static_cast<double>(parts_.size());
    rounds.most_seconds = RepeatRule().most_seconds / parts;
    if (options_.progress)
      rounds.progress = [this, parts](double part_done) {
        const double done = (static_cast<double>(number_) + part_done) / parts;
        const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
        options_.progress(done, elapsed / done * (1 - done));
      };
    return rounds;
  }

  void add_whole(const MeasuredRounds& rounds) {
    ProfiledWhole& whole = profile_.whole;
    const Samples& samples = rounds.whole();
    const UpdateSamples& updates = rounds.updates();
    whole.forward_seconds += median(samples.forward);
    whole.backward_seconds += median(samples.backward);
    whole.step_seconds += median(updates.step);
    whole.update->step_in_place_seconds += median(updates.step_in_place);
    whole.update->gradient_add_seconds += median(updates.add);
    whole.update->gradient_copy_seconds += median(updates.copy);
    whole.update->gradient_divide_seconds += median(updates.divide);
    if (whole.forward_launch_seconds) {
      *whole.forward_launch_seconds += median(samples.forward_launch);
      *whole.backward_launch_seconds += median(samples.backward_launch);
    }
    warmup_.add(rounds.warmup());
    repeats_.add(rounds.repeats());
    settled_ = settled_ && rounds.settled() == Settling::kSettled;
    // Parts may be off in one direction all of them.
    const RepeatSeries series = rounds.node_series();
    const double sum = sum_of_medians(series);
    const std::optional<double> within = sum_known_within(series);
    sums_ += sum;
    if (sum > 0 && known_) known_ = within ? std::optional(*known_ + *within * sum) : std::nullopt;
  }

  void report_part(const std::vector<ProfiledNode>& nodes, const Samples& whole) const {
    if (!options_.measured_part) return;
    MeasuredPart part{number_ + 1,
                      parts_.size(),
                      nodes.front().name,
                      nodes.back().name,
                      0,
                      median(whole.forward) + median(whole.backward)};
    part.nodes_seconds = launched_seconds(nodes).sum();
    options_.measured_part(part);
  }

  /// As many others at every part: they fit all of them, or there are none.
  void add_crowd(Bench& bench, const std::function<std::unique_ptr<Bench>()>& another,
                 const std::vector<ProfiledNode>& nodes, int64_t repeats) {
    if (number_ == 0) {
      others_ = options_.beside;
      for (const Part& part : parts_)
        if (part.need_bytes > 0) others_ = std::min(others_, limit_.memory.bytes / (2 * part.need_bytes) - 1);
      if (parts_.size() == 1) others_ = std::min(others_, others_that_fit(nodes));
      if (others_ > 0) crowd_.emplace();
    }
    if (!crowd_) return;
    const auto found =
        crowd_seconds(bench, another, others_, options_.threads, repeats,
                      options_.repeats > 0 ? 0 : kLeastCrowdSeconds / static_cast<double>(parts_.size()));
    if (found)
      *crowd_ += *found;
    else
      crowd_.reset();
  }

  const Model& model_;
  const Graph& graph_;
  const std::vector<at::Tensor>& inputs_;
  const MeasureOptions& options_;
  Profile& profile_;
  const PartLimit limit_;
  const std::vector<Part> parts_;
  const std::map<std::string, size_t> last_reader_;
  const Clock::time_point start_ = Clock::now();
  size_t number_ = 0;  // of the part, from 0
  CrossingValues crossing_;
  NodePeaks peaks_;
  Counts warmup_, repeats_;
  bool settled_ = true;
  double sums_ = 0;                  // of the parts' nodes, seconds
  std::optional<double> known_ = 0;  // within so many seconds, if of all parts
  int64_t others_ = 0;
  std::optional<CrowdFound> crowd_;
  const OtherLoad load_;
};

/// What LibTorch makes of products of float32 on a device.
std::string float32_setting(at::Float32Op op) {
  const std::string name =
      at::precision2str(at::globalContext().float32Precision(at::Float32Backend::CUDA, op));
  return name == "none" ? "ieee" : name;  // nothing set: the format's own
}

std::vector<std::pair<std::string, std::string>> provenance_of(const MeasureOptions& options,
                                                               const PartByPart& measured) {
  std::vector<std::pair<std::string, std::string>> provenance = {{"pipewright", PIPEWRIGHT_VERSION},
                                                                 {"libtorch", libtorch_version()},
                                                                 {"processor", processor_name()},
                                                                 {"warmup", measured.warmup()},
                                                                 {"repeats", measured.repeats()},
                                                                 {"seed", std::to_string(options.seed)},
                                                                 {"optimizer", options.optimizer.name},
                                                                 {"date", utc_date()}};
  if (const std::optional<double> cores = measured.other_cores()) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", *cores);
    provenance.emplace_back(kOtherCoresEntry, text);
  }
  if (measured.parts() > 1) provenance.emplace_back(kPartsEntry, std::to_string(measured.parts()));
  if (options.device.is_cpu()) return provenance;
  if (options.device.is_cuda()) provenance.emplace_back("cuda", join(cuda_versions(), ", "));
  provenance.emplace_back("clocks", measured.settled() ? "settled" : kNotSettled);
  provenance.emplace_back("float32_matmul", float32_setting(at::Float32Op::MATMUL));
  provenance.emplace_back("float32_convolution", float32_setting(at::Float32Op::CONV));
  return provenance;
}

}  // namespace

double nodes_over_whole(const Profile& profile) {
  const double whole = profile.whole.forward_seconds + profile.whole.backward_seconds;
  return whole > 0 ? launched_seconds(profile.nodes).sum() / whole : 1;
}

Profile measure(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options) {
  PW_CHECK(options.threads > 0 && options.warmup >= 0 && options.repeats >= 0,
           "measure options out of range");
  const ThreadCount threads(options.threads);
  const c10::DeviceGuard on_device(options.device);
  const at::AutoGradMode grad_mode(true);

  Profile profile;
  profile.model = model.graph.name;
  profile.graph_digest = document_digest(model.graph);
  profile.minibatch_samples = options.batch_size;
  profile.device = device_text(options.device);
  profile.threads = options.threads;
  profile.together = model.graph.together;
  PartByPart measured(model, inputs, options, profile);
  measured.run();
  profile.provenance = provenance_of(options, measured);
  return profile;
}

}  // namespace pipewright
