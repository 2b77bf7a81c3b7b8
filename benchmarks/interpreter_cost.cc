// Times the interpreter against the same operators called directly from C++, in turn in one run: ResNet-50
// forward and forward with backward, chains of the cheapest operators there are, for the cost of one node,
// and training steps of a GPT so small that all but the host's work is next to nothing.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>

#include "graph/error.h"
#include "models/initialise.h"
#include "models/load.h"
#include "models/memory/memory_meter.h"
#include "models/run/autocast.h"
#include "models/run/interpreter.h"
#include "runtime/stage/stage_replica.h"

using namespace pipewright;

namespace {

using Tensors = std::vector<at::Tensor>;

// Processor time of the process: a busy machine takes turns, but adds little to it.
double microseconds(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  work();
  return now() - begin;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

struct Timed {
  double direct, interpreted;  ///< medians, microseconds
  double ratio, lower, upper;  ///< of the pairs: median and quartiles
  double difference;           ///< of the pairs: median, microseconds
};

Timed compare(const std::function<void()>& direct, const std::function<void()>& interpreted, int64_t rounds) {
  for (int i = 0; i < 3; ++i) {
    direct();
    interpreted();
  }
  std::vector<double> theirs, ours, ratios, differences;
  for (int64_t round = 0; round < rounds; ++round) {
    theirs.push_back(microseconds(direct));
    ours.push_back(microseconds(interpreted));
    ratios.push_back(ours.back() / theirs.back());
    differences.push_back(ours.back() - theirs.back());
  }
  return {quantile(theirs, 0.5),  quantile(ours, 0.5),    quantile(ratios, 0.5),
          quantile(ratios, 0.25), quantile(ratios, 0.75), quantile(differences, 0.5)};
}

Segment whole(const Graph& graph) {
  std::vector<size_t> nodes(graph.nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i] = i;
  return Segment(graph, nodes, {graph.outputs[0]});
}

/// models/zoo/resnet.cc's resnet50, by hand. Parameters and buffers come in the order of the graph.
class ResNet50 {
 public:
  ResNet50(const Tensors& parameters, const Tensors& buffers) : parameters_(parameters), buffers_(buffers) {}

  at::Tensor loss(const at::Tensor& images, const at::Tensor& labels) {
    parameter_ = parameters_.begin();
    buffer_ = buffers_.begin();
    at::Tensor x = at::relu(convolution(images, 2, 3));
    x = at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
    const int64_t blocks[] = {3, 4, 6, 3};
    for (int64_t group = 0; group < 4; ++group) {
      for (int64_t i = 0; i < blocks[group]; ++i) {
        const int64_t stride = group > 0 && i == 0 ? 2 : 1;
        at::Tensor y = at::relu(convolution(x, 1, 0));
        y = at::relu(convolution(y, stride, 1));
        y = convolution(y, 1, 0);
        if (i == 0) x = convolution(x, stride, 0);
        x = at::relu(at::add(y, x));
      }
    }
    x = at::flatten(at::adaptive_avg_pool2d(x, {1, 1}), 1);
    const at::Tensor &weight = *parameter_++, &bias = *parameter_++;
    return at::cross_entropy_loss(at::linear(x, weight, bias), labels);
  }

 private:
  at::Tensor convolution(const at::Tensor& x, int64_t stride, int64_t padding) {
    const at::Tensor y = at::conv2d(x, *parameter_++, {}, {stride, stride}, {padding, padding});
    const at::Tensor &weight = *parameter_++, &bias = *parameter_++;
    const at::Tensor &mean = *buffer_++, &variance = *buffer_++;
    return at::batch_norm(y, weight, bias, mean, variance, true, 0.1, 1e-5, true);
  }

  const Tensors &parameters_, &buffers_;
  Tensors::const_iterator parameter_, buffer_;
};

void time_resnet(int64_t batch, int64_t image, int64_t rounds) {
  const Model model = load_model("resnet50:classes=10,image=" + std::to_string(image), batch);
  const Segment segment = whole(model.graph);
  Tensors parameters, buffers;
  for (const auto& name : segment.parameters())
    parameters.push_back(initial_parameter(model, name, 1).requires_grad_());
  for (const auto& name : segment.buffers()) buffers.push_back(initial_buffer(model, name));
  const at::Tensor images = at::randn({batch, 3, image, image}), labels = at::randint(10, {batch}, at::kLong);
  ResNet50 direct(parameters, buffers);
  const auto by_hand = [&] { return direct.loss(images, labels); };
  const auto by_nodes = [&] { return segment.forward({images, labels}, parameters, buffers, {})[0]; };
  PW_CHECK(by_hand().equal(by_nodes()), "the two compute different things");

  const double nodes = static_cast<double>(model.graph.nodes.size());
  std::printf("resnet50, image %lld, batch %lld: %.0f nodes\n", static_cast<long long>(image),
              static_cast<long long>(batch), nodes);
  const auto print = [&](const char* what, const Timed& timed) {
    std::printf("  %-18s direct %9.2f ms  interpreted %9.2f ms  ratio %.4f (quartiles %.4f .. %.4f)\n", what,
                timed.direct / 1e3, timed.interpreted / 1e3, timed.ratio, timed.lower, timed.upper);
  };
  print("forward", compare([&] { by_hand(); }, [&] { by_nodes(); }, rounds));
  const auto step = [&](const auto& forward) { torch::autograd::grad({forward()}, parameters); };
  print("forward, backward", compare([&] { step(by_hand); }, [&] { step(by_nodes); }, rounds));
}

void time_chain(bool gradient, int64_t nodes, int64_t rounds) {
  Graph graph;
  graph.name = "chain";
  graph.inputs = {"x"};
  graph.parameters = {{"w", {"float32", {1}}, true}};
  graph.values["x"] = {"float32", {1}};
  std::string last = "x";
  for (int64_t i = 0; i < nodes; ++i) {
    Node node;
    node.name = "n" + std::to_string(i);
    node.op = "aten::mul";
    node.overload = "Tensor";
    node.arguments = {{"self", TensorArgument{last}}, {"other", TensorArgument{"w"}}};
    node.outputs = {last = node.name};
    graph.values[last] = {"float32", {1}};
    graph.nodes.push_back(std::move(node));
  }
  graph.outputs = {last};
  const Segment segment = whole(graph);
  const Tensors parameters = {at::ones({1}).requires_grad_(gradient)};
  const at::Tensor start = at::ones({1});
  const Timed timed = compare(
      [&] {
        at::Tensor x = start;
        for (int64_t i = 0; i < nodes; ++i) x = at::mul(x, parameters[0]);
      },
      [&] { segment.forward({start}, parameters, {}, {}); }, rounds);
  const double count = static_cast<double>(nodes);
  std::printf("a product of two numbers, %s: direct %.3f us, a node adds %.3f us\n",
              gradient ? "with autograd" : "without autograd", timed.direct / count,
              timed.difference / count);
}

/// models/zoo/gpt.cc's loss, by hand. Parameters come in the order of the graph.
class Gpt {
 public:
  Gpt(int64_t layers, int64_t heads, const Tensors& parameters)
      : layers_(layers), heads_(heads), parameters_(parameters) {}

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& labels) {
    parameter_ = parameters_.begin();
    const at::Tensor& table = *parameter_++;
    at::Tensor x = at::add(at::embedding(table, tokens), *parameter_++);
    for (int64_t i = 0; i < layers_; ++i) {
      x = at::add(x, attention(norm(x)));
      const at::Tensor wide = at::gelu(linear(norm(x)));
      x = at::add(x, linear(wide));
    }
    x = norm(x);
    const at::Tensor scores = at::linear(x, *parameter_++);
    return at::cross_entropy_loss(at::reshape(scores, {-1, scores.size(-1)}), at::reshape(labels, {-1}));
  }

 private:
  at::Tensor norm(const at::Tensor& x) {
    const at::Tensor &weight = *parameter_++, &bias = *parameter_++;
    return at::layer_norm(x, {x.size(-1)}, weight, bias, 1e-5);
  }
  at::Tensor linear(const at::Tensor& x) {
    const at::Tensor &weight = *parameter_++, &bias = *parameter_++;
    return at::linear(x, weight, bias);
  }
  at::Tensor attention(const at::Tensor& x) {
    const int64_t tokens = x.size(1), width = x.size(2);
    Tensors parts = at::split(linear(x), width, 2);
    for (at::Tensor& part : parts)
      part = at::transpose(at::reshape(part, {-1, tokens, heads_, width / heads_}), 1, 2);
    const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    return linear(at::reshape(at::transpose(y, 1, 2), {-1, tokens, width}));
  }

  const int64_t layers_, heads_;
  const Tensors& parameters_;
  Tensors::const_iterator parameter_;
};

/// Forward, backward and update: microseconds of a step.
using StepTimes = std::array<double, 3>;
constexpr const char* kStepParts[] = {"forward", "backward", "update"};

/// A step as C++ would be written for this model alone; the update is LibTorch's fused one in place.
class StepByHand {
 public:
  StepByHand(Gpt gpt, Tensors& parameters, const Tensors& fields, bool autocast)
      : gpt_(gpt), parameters_(parameters), fields_(fields), autocast_(autocast) {
    for (const at::Tensor& parameter : parameters) {
      first_.push_back(at::zeros_like(parameter));
      second_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::ones({}));
    }
  }

  double step(StepTimes& times) {
    at::Tensor loss;
    double number = 0;
    Tensors gradients;
    times[0] += microseconds([&] {
      at::autocast::set_autocast_cache_enabled(false);
      at::autocast::set_autocast_enabled(at::kCPU, autocast_);
      loss = gpt_.loss(fields_[0], fields_[1]);
      at::autocast::set_autocast_enabled(at::kCPU, false);
    });
    // What was made goes where it does in the runtime: a graph is not freed for nothing.
    times[1] += microseconds([&] {
      gradients = torch::autograd::grad({loss}, parameters_);
      number = loss.item<double>();
      loss.reset();
    });
    times[2] += microseconds([&] {
      const at::NoGradGuard no_grad;
      at::_fused_adamw_(parameters_, gradients, first_, second_, {}, steps_, 1e-4, 0.9, 0.999, 0.01, 1e-8,
                        false, false);
      gradients.clear();
    });
    return number;
  }

 private:
  Gpt gpt_;
  Tensors& parameters_;
  const Tensors& fields_;
  const bool autocast_;
  Tensors first_, second_, steps_;
};

/// The same as the runtime does it: one rank that trains the whole model.
class StepByRuntime {
 public:
  StepByRuntime(const Model& model, const Tensors& fields) : fields_(fields) {
    const Plan plan = single_stage_plan(model.graph, 1);
    TrainingRules rules;
    rules.optimizer.name = "adamw";
    rules.optimizer.learning_rate = 1e-4;
    rules.total_minibatches = kMost;
    stage_ = std::make_unique<StageReplica>(model, plan, 0, 0, rules);
    stage_->begin(std::make_shared<TurnSpan>(Span{0, kMost}, PipelineTurn{}), 0);
  }

  const Tensors& weights() const { return stage_->weights(); }
  double step(StepTimes& times) {
    StageReplica::Forwarded forwarded;
    times[0] += microseconds([&] {
      stage_->deferred().poll();
      forwarded = stage_->forward(next_, {}, fields_);
      stage_->check_forward(next_, forwarded, {}, fields_);
    });
    times[1] += microseconds([&] {
      stage_->backward(next_, {});
      stage_->average(next_);
    });
    times[2] += microseconds([&] { stage_->update(next_++); });
    return forwarded.loss.item<double>();
  }

 private:
  static constexpr int64_t kMost = 1 << 20;
  std::unique_ptr<StageReplica> stage_;
  const Tensors& fields_;
  int64_t next_ = 0;
};

void time_gpt(const std::string& precision, int64_t layers, int64_t rounds) {
  constexpr int64_t kHeads = 2;
  Model model = load_model("gpt:width=16,heads=" + std::to_string(kHeads) +
                               ",tokens=8,vocabulary=32,layers=" + std::to_string(layers),
                           1);
  model.graph = with_precision(model, precision);
  const Tensors fields = {at::randint(32, {1, 8}, at::kLong), at::randint(32, {1, 8}, at::kLong)};
  StepByRuntime runtime(model, fields);
  Tensors parameters;
  for (const at::Tensor& weight : runtime.weights())
    parameters.push_back(weight.detach().clone().requires_grad_());
  StepByHand by_hand({layers, kHeads, parameters}, parameters, fields, precision == "bfloat16");
  {
    StepTimes unused{};
    const double here = by_hand.step(unused), there = runtime.step(unused);
    PW_CHECK(here == there, "the two compute different things: " << here << ", " << there);
  }
  // As a run has it; what it costs is told apart, as on the CPU most of it is LibTorch's own table.
  MemoryMeter meter;
  const auto metered_step = [&](StepTimes& times) {
    const MemoryMeter::Attached attached(meter);
    runtime.step(times);
  };
  constexpr int64_t kSteps = 10;
  const std::function<void(StepTimes&)> sides[] = {[&](StepTimes& times) { by_hand.step(times); },
                                                   [&](StepTimes& times) { runtime.step(times); },
                                                   metered_step};
  std::vector<double> times[3][4], added[3][4];  // by side, and by part or of all
  for (int64_t round = -3; round < rounds; ++round) {
    for (size_t side = 0; side < 3; ++side) {
      StepTimes parts{};
      for (int64_t i = 0; i < kSteps; ++i) sides[side](parts);
      if (round < 0) continue;
      for (size_t part = 0; part < 4; ++part) {
        const double all = parts[0] + parts[1] + parts[2];
        times[side][part].push_back((part < 3 ? parts[part] : all) / kSteps);
        added[side][part].push_back(times[side][part].back() - times[0][part].back());
      }
    }
  }
  const double nodes = static_cast<double>(model.graph.nodes.size());
  std::printf("a step of a tiny gpt of %lld layers, %s: %.0f nodes, %zu parameters\n",
              static_cast<long long>(layers), precision.c_str(), nodes, parameters.size());
  for (size_t part = 0; part < 4; ++part) {
    std::printf("  %-8s direct %5.0f us", part < 3 ? kStepParts[part] : "step",
                quantile(times[0][part], 0.5));
    for (size_t side = 1; side < 3; ++side) {
      const std::vector<double>& adds = added[side][part];
      std::printf("; %s adds %4.0f us (quartiles %.0f .. %.0f), %.2f us a node",
                  side == 1 ? "the runtime" : "with the memory meter it", quantile(adds, 0.5),
                  quantile(adds, 0.25), quantile(adds, 0.75), quantile(adds, 0.5) / nodes);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) try {
  namespace options = boost::program_options;
  int64_t batch = 0, image = 0, rounds = 0, nodes = 0, layers = 0;
  int threads = 0;
  options::options_description description("interpreter: nodes of a graph against direct calls");
  description.add_options()("help", "this text")("batch", options::value(&batch)->default_value(8),
                                                 "samples of a minibatch")(
      "image", options::value(&image)->default_value(64), "side of the images")(
      "rounds", options::value(&rounds)->default_value(31), "passes of each kind")(
      "nodes", options::value(&nodes)->default_value(1000), "of the chain")(
      "layers", options::value(&layers)->default_value(8), "of the GPT")(
      "threads", options::value(&threads)->default_value(1), "compute threads");
  options::variables_map given;
  options::store(options::parse_command_line(argc, argv, description), given);
  options::notify(given);
  if (given.count("help") > 0) {
    std::cout << description;
    return 0;
  }
  if (batch < 1 || image < 32 || rounds < 1 || nodes < 1 || layers < 1 || threads < 1)
    throw options::error("counts start at 1, images at 32");
  at::set_num_threads(threads);
  time_gpt("float32", layers, 5 * rounds);
  time_gpt("bfloat16", layers, 5 * rounds);
  time_resnet(batch, image, rounds);
  time_chain(false, nodes, 10 * rounds);
  time_chain(true, nodes, 10 * rounds);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "interpreter: %s\n", error.what());
  return 2;
}
