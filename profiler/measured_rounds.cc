#include "profiler/measured_rounds.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "graph/statistics.h"

namespace pipewright {
namespace {

RepeatRule rule_of(const RoundOptions& options) {
  RepeatRule rule;
  rule.most_seconds = options.most_seconds;
  return rule;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void UpdateSamples::add_pass(const WholePass& pass, double Stretch::*seconds) {
  step.push_back(pass.step.*seconds);
  step_in_place.push_back(pass.step_in_place.*seconds);
  add.push_back(pass.gradient_add.*seconds);
  copy.push_back(pass.gradient_copy.*seconds);
  divide.push_back(pass.gradient_divide.*seconds);
}

MeasuredRounds::MeasuredRounds(Bench& bench, RoundOptions options)
    : bench_(bench),
      options_(std::move(options)),
      warmup_(options_.warmup),
      repeats_(options_.repeats > 0 ? options_.repeats : static_cast<int64_t>(RepeatRule().least)),
      nodes_(bench.size()) {}

void MeasuredRounds::run() {
  warm_up();
  const auto begin = Clock::now();
  do {
    take(measure_round());
    if (options_.repeats > 0) continue;
    // For the progress: as many as the time allows, if all of it is needed.
    const RepeatRule rule = rule_of(options_);
    repeats_ = static_cast<int64_t>(
        std::clamp(static_cast<double>(rounds_ - warmup_) * rule.most_seconds / seconds_since(begin),
                   static_cast<double>(rule.least), static_cast<double>(rule.most)));
  } while (goes_on(seconds_since(begin)));
  repeats_ = rounds_ - warmup_;
  trace();
}

void MeasuredRounds::trace() {
  constexpr int kTracedPasses = 5;
  for (int i = 0; i < kTracedPasses; ++i) {
    const std::optional<Bench::TracedPass> pass = bench_.trace();
    if (!pass) return;
    kernels_.resize(bench_.size());
    for (size_t n = 0; n < kernels_.size(); ++n) {
      const Stretch &forward = pass->nodes.forward[n], &backward = pass->nodes.backward[n];
      kernels_[n].forward.push_back(forward.kernel_seconds);
      kernels_[n].backward.push_back(backward.kernel_seconds);
      kernels_[n].input_part.push_back(pass->input_parts[n].kernel_seconds);
      kernels_[n].forward_kernels.push_back(static_cast<double>(forward.kernels));
      kernels_[n].backward_kernels.push_back(static_cast<double>(backward.kernels));
    }
    gaps_.push_back(pass->gap_seconds);
    traced_updates_.add_pass(pass->whole, &Stretch::kernel_seconds);
  }
}

double MeasuredRounds::gap_seconds() const { return median(gaps_); }

bool MeasuredRounds::goes_on(double elapsed_seconds) const {
  if (options_.repeats > 0) return rounds_ < warmup_ + options_.repeats;
  return repeating(node_series(), elapsed_seconds, rule_of(options_)) == Repeating::kGoesOn;
}

RepeatSeries MeasuredRounds::node_series() const {
  RepeatSeries series;
  for (const Samples& node : nodes_) series.push_back(node.forward);
  for (const Samples& node : nodes_) series.push_back(node.backward);
  return series;
}

void MeasuredRounds::warm_up() {
  std::vector<double> seconds;
  const auto is_cold = [&] {
    if (rounds_ < options_.warmup) return true;
    if (options_.settles) settled_ = settling(seconds, seconds_since(start_));
    return settled_ == Settling::kGoesOn;
  };
  while (is_cold()) {
    const WholePass whole = measure_round().whole;
    seconds.push_back(whole.forward.device_seconds + whole.backward.device_seconds);
  }
  warmup_ = rounds_;
}

MeasuredRounds::Round MeasuredRounds::measure_round() {
  Round round;
  round.whole = bench_.time_whole();
  report(1);
  round.nodes = bench_.time_nodes();
  report(2);
  round.input_parts = bench_.time_input_parts();
  report(3);
  ++rounds_;
  return round;
}

void MeasuredRounds::report(int third) const {
  if (!options_.progress) return;
  options_.progress((static_cast<double>(rounds_) + third / 3.0) /
                    static_cast<double>(std::max(warmup_, rounds_) + repeats_));
}

void MeasuredRounds::take(const Round& round) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].forward.push_back(round.nodes.forward[i].device_seconds);
    nodes_[i].backward.push_back(round.nodes.backward[i].device_seconds);
    nodes_[i].input_part.push_back(round.input_parts[i].device_seconds);
    nodes_[i].forward_launch.push_back(round.nodes.forward[i].host_seconds);
    nodes_[i].backward_launch.push_back(round.nodes.backward[i].host_seconds);
  }
  whole_.forward.push_back(round.whole.forward.device_seconds);
  whole_.backward.push_back(round.whole.backward.device_seconds);
  whole_.forward_launch.push_back(round.whole.forward.host_seconds);
  whole_.backward_launch.push_back(round.whole.backward.host_seconds);
  updates_.add_pass(round.whole);
}

}  // namespace pipewright
