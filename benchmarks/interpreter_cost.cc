// Times the interpreter against the same operators called directly from C++, in turn in one run: ResNet-50
// forward and forward with backward, and chains of the cheapest operators there are, for the cost of one
// node.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>

#include "graph/error.h"
#include "models/initialise.h"
#include "models/load.h"
#include "models/run/interpreter.h"

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

}  // namespace

int main(int argc, char** argv) try {
  namespace options = boost::program_options;
  int64_t batch = 0, image = 0, rounds = 0, nodes = 0;
  int threads = 0;
  options::options_description description("interpreter: nodes of a graph against direct calls");
  description.add_options()("help", "this text")("batch", options::value(&batch)->default_value(8),
                                                 "samples of a minibatch")(
      "image", options::value(&image)->default_value(64), "side of the images")(
      "rounds", options::value(&rounds)->default_value(31), "passes of each kind")(
      "nodes", options::value(&nodes)->default_value(1000), "of the chain")(
      "threads", options::value(&threads)->default_value(1), "compute threads");
  options::variables_map given;
  options::store(options::parse_command_line(argc, argv, description), given);
  options::notify(given);
  if (given.count("help") > 0) {
    std::cout << description;
    return 0;
  }
  if (batch < 1 || image < 32 || rounds < 1 || nodes < 1 || threads < 1)
    throw options::error("counts start at 1, images at 32");
  at::set_num_threads(threads);
  time_resnet(batch, image, rounds);
  time_chain(false, nodes, 10 * rounds);
  time_chain(true, nodes, 10 * rounds);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "interpreter: %s\n", error.what());
  return 2;
}
