// How close does a straight two-rank pipeline come to its bound, the slower stage alone?
//
// In turn, several times in one run: the pipeline as users run it (pipewright-runtime launch, two processes,
// Gloo, one core each) and each stage alone in this process on one core, forward + backward + update on the
// same shapes without any peer. Prints medians with spread, their ratio, and where the rest of the time goes.
#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/summary.h"
#include "models/initialise.h"
#include "models/run/scalar_types.h"
#include "runtime/job/job.h"
#include "runtime/stage/stage_program.h"
#include "runtime/update/update_rule.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;
using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// "17.30 ms (17.12 .. 18.40)"
std::string spread(const std::vector<double>& seconds) {
  char text[96];
  std::snprintf(text, sizeof text, "%8.3f ms  (%.3f .. %.3f)", 1e3 * median(seconds),
                1e3 * *std::min_element(seconds.begin(), seconds.end()),
                1e3 * *std::max_element(seconds.begin(), seconds.end()));
  return text;
}

at::Tensor filler(const MessagePart& part) {
  const auto options = at::TensorOptions().dtype(part.dtype);
  return at::isFloatingType(part.dtype) ? at::rand(part.shape, options)
                                        : at::randint(10, part.shape, options);
}

// Median seconds of one minibatch of a stage with everything it needs at hand.
double stage_alone_seconds(const Job& job, size_t index, int64_t minibatches) {
  const StageProgram stage(job.model.graph, partition(job.model.graph, job.plan), index);
  std::vector<at::Tensor> weights;
  for (const auto& name : stage.parameters())
    weights.push_back(initial_parameter(job.model, name, 0).requires_grad_());
  std::vector<at::Tensor> buffers;
  for (const auto& name : stage.buffers()) buffers.push_back(initial_buffer(job.model, name));
  WeightVersions versions(weights);
  weights.clear();
  const auto rule = make_update_rule(job.run.optimizer);
  std::vector<at::Tensor> received, fields, gradients;
  for (const auto& part : stage.received_parts()) received.push_back(filler(part));
  for (const auto& name : stage.fields()) {
    const TensorType& type = job.model.graph.values.at(name);
    fields.push_back(filler({type.shape, scalar_type_of(type.dtype)}));
  }
  for (const auto& part : stage.sent_gradient_parts()) gradients.push_back(filler(part) * 1e-3);
  std::vector<double> seconds;
  for (int64_t k = 0; k < minibatches; ++k) {
    const auto begin = Clock::now();
    Pass pass = stage.forward(received, fields, versions.latest(), buffers, {0, k});
    if (pass.loss.defined()) (void)pass.loss.item<double>();
    StageGradients found = stage.backward(std::move(pass), gradients);
    versions.publish(rule->step(versions.latest()->weights, std::move(found.weights), 1e-6));
    if (k >= minibatches / 4) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return median(seconds);
}

void bind_to_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

void measure(const std::vector<std::string>& arguments) {
  po::options_description description;
  description.add_options()("plan", po::value<std::string>()->value_name("FILE"),
                            "a plan of two stages, one rank each")(
      "model", po::value<std::string>()->default_value("mlp:layers=8,width=1024"), "")(
      "data", po::value<std::string>()->default_value("fashion-mnist:image=32"), "")(
      "batch-size", po::value<int64_t>()->default_value(32), "")(
      "minibatches", po::value<int64_t>()->default_value(200), "of one run")(
      "rounds", po::value<int>()->default_value(5), "runs of each kind, in turn")(
      "runtime", po::value<std::string>()->default_value("build/release/bin/pipewright-runtime"),
      "the program")("output", po::value<std::string>()->default_value("runs/stage_bound"), "");
  const auto options = parse_options(arguments, description, "stage_bound --plan gpus=2.json [options]");
  if (!options.count("plan")) throw InputError("--plan is missing", "experiments/stage_bound/run makes one");
  Run run;
  run.model = options["model"].as<std::string>();
  run.data = options["data"].as<std::string>();
  run.plan = options["plan"].as<std::string>();
  run.batch_size = options["batch-size"].as<int64_t>();
  run.minibatches = options["minibatches"].as<int64_t>();
  run.output = options["output"].as<std::string>();
  const Job job = prepare_job(run, 2);
  const auto minibatches = std::to_string(run.minibatches);
  const std::string command = options["runtime"].as<std::string>() + " launch --plan '" + run.plan +
                              "' --model '" + run.model + "' --data '" + run.data + "' --batch-size " +
                              std::to_string(run.batch_size) + " --minibatches " + minibatches +
                              " --trace-minibatches 0 --output '" + run.output + "' >/dev/null 2>&1";

  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  at::set_num_threads(1);
  std::vector<std::vector<double>> alone(2);
  std::vector<double> pipeline, ratio;
  std::vector<RankSummary> ranks;
  for (int round = 0; round < options["rounds"].as<int>(); ++round) {
    sched_setaffinity(0, sizeof all, &all);
    if (std::system(command.c_str()) != 0) throw RunError("the pipeline failed: " + command);
    const auto summary = read_document<Summary>(std::filesystem::path(run.output) / "summary.json");
    pipeline.push_back(summary.minibatch_seconds);
    ranks = summary.ranks;
    for (size_t s = 0; s < 2; ++s) {
      bind_to_core(static_cast<int>(s));  // where the launcher puts that rank: cores are not all alike
      alone[s].push_back(stage_alone_seconds(job, s, run.minibatches));
    }
    ratio.push_back(std::max(alone[0].back(), alone[1].back()) / pipeline.back());
  }
  std::cout << "stage 0 alone        " << spread(alone[0]) << "\n"
            << "stage 1 alone        " << spread(alone[1]) << "\n"
            << "pipeline, minibatch  " << spread(pipeline) << "\n";
  char text[160];
  std::snprintf(text, sizeof text, "bound / pipeline     %8.3f     (%.3f .. %.3f)\n", median(ratio),
                *std::min_element(ratio.begin(), ratio.end()), *std::max_element(ratio.begin(), ratio.end()));
  std::cout << text << "where the time of a minibatch went (last run):\n";
  for (const RankSummary& rank : ranks) {
    const double count = static_cast<double>(run.minibatches);
    std::snprintf(text, sizeof text,
                  "  rank %ld: computing %.1f %%, waiting for messages %.3f ms, sent %.1f KiB\n", rank.rank,
                  100 * rank.busy_fraction, 1e3 * rank.receive_wait_seconds / count,
                  static_cast<double>(rank.sent_bytes) / count / 1024);
    std::cout << text;
  }
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  using namespace pipewright;
  return run_program({"stage_bound",
                      "A two-rank pipeline against its slower stage alone.",
                      "stage_bound --plan gpus=2.straight.json",
                      {{"measure", "run and print (default)", measure}},
                      [] { return std::string(); }},
                     argc, argv);
}
