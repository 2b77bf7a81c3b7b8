// Programs that a seed makes up, as an exporter of PyTorch could write them: any loss, operators that keep
// samples apart and operators that mix them, buffers that a program writes by itself. In float64, so that
// what is equal up to the order of sums is told from what is not.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "models/definition/model.h"
#include "models/exported/storage_groups.h"
#include "models/run/interpreter.h"
#include "models/run/passes.h"

namespace pipewright::testing {

class RandomProgram {
 public:
  static constexpr int64_t kClasses = 5;
  /// The number of samples that shapes are found with: what is a multiple of it counts samples.
  static constexpr int64_t kSamples = 101;

  explicit RandomProgram(uint64_t seed) : random_(seed) {
    graph_.name = "program " + std::to_string(seed);
    draw();
  }

  /// For minibatches of `samples`.
  Model model(int64_t samples) const {
    Model model;
    model.graph = for_samples(samples);
    for (const Parameter& parameter : model.graph.parameters)
      model.parameter_initialisers.push_back(starts_.at(parameter.name));
    for (const Buffer& buffer : model.graph.buffers)
      model.buffer_initialisers.push_back(starts_.at(buffer.name));
    model.graph_for = [drawn = *this](int64_t other) { return drawn.for_samples(other); };
    return model;
  }

  /// What was drawn, for messages and counts.
  const std::string& loss_kind() const { return loss_kind_; }

  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool chance(int64_t percent) { return between(1, 100) <= percent; }

 private:
  using Arguments = std::vector<std::pair<std::string, Argument>>;

  static TensorArgument tensor(const std::string& name) { return {name}; }

  Graph for_samples(int64_t samples) const {
    const auto size = [&](int64_t extent) {
      return extent % kSamples == 0 ? extent / kSamples * samples : extent;
    };
    Graph graph = graph_;
    for (auto& [name, type] : graph.values)
      for (int64_t& extent : type.shape) extent = size(extent);
    for (Node& node : graph.nodes) {
      for (auto& [name, value] : node.arguments) {
        if (auto* one = std::get_if<int64_t>(&value)) *one = size(*one);
        if (auto* many = std::get_if<std::vector<int64_t>>(&value))
          for (int64_t& each : *many) each = size(each);
      }
    }
    return with_nodes_everywhere(with_storage_groups(without_dead_nodes(std::move(graph))));
  }

  std::string fresh(const std::string& op) {
    return op.substr(6) + "_" + std::to_string(graph_.nodes.size());
  }

  static std::string dtype_of(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kDouble ? "float64"
           : tensor.scalar_type() == at::kBool ? "bool"
                                               : "int64";
  }

  /// Adds a node, and runs it, which tells the shapes of what it makes. Nothing if it cannot run.
  std::vector<std::string> call_for(size_t results, const std::string& op, const std::string& overload,
                                    Arguments arguments, bool gradient = true) {
    std::vector<std::string> names = {fresh(op)};
    for (size_t i = 1; i < results; ++i) names.push_back(names[0] + "_" + std::to_string(i));
    Node node{names[0], op, overload, std::move(arguments), names, "layer", gradient};
    Graph one = graph_;
    one.nodes.push_back(node);
    for (const std::string& name : names) one.values[name] = {};
    try {
      const Segment segment(one, {graph_.nodes.size()}, names);
      std::vector<at::Tensor> inputs, parameters, buffers;
      for (const auto& each : segment.inputs()) inputs.push_back(tensors_.at(each));
      for (const auto& each : segment.parameters()) parameters.push_back(tensors_.at(each));
      for (const auto& each : segment.buffers()) buffers.push_back(tensors_.at(each));
      const auto made = segment.forward(inputs, parameters, buffers, {});
      for (size_t i = 0; i < results; ++i) tensors_[names[i]] = made[i];
    } catch (const std::exception&) {
      return {};
    }
    for (const std::string& name : names)
      graph_.values[name] = {dtype_of(tensors_.at(name)), tensors_.at(name).sizes().vec()};
    graph_.nodes.push_back(std::move(node));
    return names;
  }
  /// Of one result; "" if it cannot run.
  std::string call(const std::string& op, const std::string& overload, Arguments arguments,
                   bool gradient = true) {
    const auto names = call_for(1, op, overload, std::move(arguments), gradient);
    return names.empty() ? "" : names[0];
  }

  const at::Tensor& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw std::out_of_range("no value '" + name + "' of " + graph_.name);
    return found->second;
  }
  int64_t rank(const std::string& name) const { return at(name).dim(); }
  int64_t dimension(const std::string& name) { return between(0, std::max<int64_t>(0, rank(name) - 1)); }

  std::string input(const std::string& name, at::Tensor value) {
    graph_.inputs.push_back(name);
    graph_.values[name] = {dtype_of(value), value.sizes().vec()};
    tensors_[name] = std::move(value);
    return name;
  }
  std::string parameter(const std::vector<int64_t>& shape) {
    const std::string name = "weight" + std::to_string(graph_.parameters.size());
    graph_.parameters.push_back({name, {"float64", shape}, true});
    starts_[name] = Initialiser::uniform(0.5);
    tensors_[name] = at::rand(shape, at::kDouble) - 0.5;
    return name;
  }
  std::string buffer(const std::vector<int64_t>& shape, double value) {
    const std::string name = "buffer" + std::to_string(graph_.buffers.size());
    graph_.buffers.push_back({name, {"float64", shape}});
    starts_[name] = Initialiser::constant(value);
    tensors_[name] = at::full(shape, value, at::kDouble);
    return name;
  }

  std::string linear(const std::string& x, int64_t width) {
    const int64_t last = at(x).size(-1);
    return call("aten::linear", "",
                {{"input", tensor(x)},
                 {"weight", tensor(parameter({width, last}))},
                 {"bias", tensor(parameter({width}))}});
  }

  void draw() {
    at::manual_seed(7);
    width_ = between(3, 6);
    const int64_t steps_in_time = chance(40) ? between(2, 4) : 0;
    std::vector<int64_t> shape = {kSamples};
    if (steps_in_time > 0) shape.push_back(steps_in_time);
    std::vector<int64_t> features = shape;
    features.push_back(width_);
    std::string x = input("features", at::randn(features, at::kDouble));
    labels_ = input("labels", at::randint(kClasses, shape, at::kLong));
    std::string carried = linear(x, width_);
    const int64_t mixing = between(0, 3) == 0 ? 2 : 0;  // most programs keep samples apart
    for (int64_t i = between(2, 6); i > 0; --i) {
      const std::string next = step(carried, mixing > 0 && chance(40));
      // Of the same meaning as before, so that programs stay about as large.
      if (!next.empty() && at(next).sizes() == at(carried).sizes() && dtype_of(at(next)) == "float64")
        carried = next;
      if (chance(30)) carried = call("aten::tanh", "", {{"self", tensor(carried)}});
    }
    const std::string scores = linear(call("aten::tanh", "", {{"self", tensor(carried)}}), kClasses);
    graph_.outputs = {loss(scores), scores};
  }

  std::string step(const std::string& x, bool mixes) {
    try {
      return mixes ? mix(x) : apart(x);
    } catch (const std::out_of_range&) {
      return {};  // a part of it could not run on what was drawn
    }
  }

  // An operator that keeps samples apart, most of the time: dimensions are drawn too.
  std::string apart(const std::string& x) {
    switch (between(0, 17)) {
      case 0:
        return linear(x, width_);
      case 1:
        return call("aten::softmax", "int", {{"self", tensor(x)}, {"dim", int64_t{-1}}});
      case 2:
        return call("aten::layer_norm", "",
                    {{"input", tensor(x)}, {"normalized_shape", std::vector<int64_t>{at(x).size(-1)}}});
      case 3:
        return call("aten::cumsum", "", {{"self", tensor(x)}, {"dim", int64_t{-1}}});
      case 4: {
        const std::string gate = call("aten::sigmoid", "", {{"self", tensor(linear(x, width_))}});
        return gate.empty() ? gate
                            : call("aten::mul", "Tensor", {{"self", tensor(x)}, {"other", tensor(gate)}});
      }
      case 5:
        return flattened(x);
      case 6:
        return call("aten::flip", "", {{"self", tensor(x)}, {"dims", std::vector<int64_t>{rank(x) - 1}}});
      case 7:
        return call("aten::add", "Tensor",
                    {{"self", tensor(x)}, {"other", tensor(parameter({at(x).size(-1)}))}});
      case 8: {
        const std::string mean = call(
            "aten::mean", "dim", {{"self", tensor(x)}, {"dim", std::vector<int64_t>{-1}}, {"keepdim", true}});
        return call("aten::sub", "Tensor", {{"self", tensor(x)}, {"other", tensor(mean)}});
      }
      case 9:
        return transposed(x);
      case 10:
        return attention(x);
      case 11:
        return picked_rows(x);
      case 12:
        return expanded(x);
      case 13:
        return joined_and_cut(x, rank(x) - 1);
      case 14:
        return counted(x);
      case 15:
        return convolved(x);
      case 16:
        return with_time_first(x);
      default:
        return in_place(x);
    }
  }

  // One that may mix them.
  std::string mix(const std::string& x) {
    const int64_t d = dimension(x);
    switch (between(0, 11)) {
      case 0:
        return call("aten::softmax", "int", {{"self", tensor(x)}, {"dim", d}});
      case 1:
        return call("aten::cumsum", "", {{"self", tensor(x)}, {"dim", d}});
      case 2: {
        const std::string mean = call(
            "aten::mean", "dim", {{"self", tensor(x)}, {"dim", std::vector<int64_t>{d}}, {"keepdim", true}});
        return call("aten::sub", "Tensor", {{"self", tensor(x)}, {"other", tensor(mean)}});
      }
      case 3:
        return call(
            "aten::roll", "",
            {{"self", tensor(x)}, {"shifts", std::vector<int64_t>{1}}, {"dims", std::vector<int64_t>{d}}});
      case 4:
        return call("aten::flip", "", {{"self", tensor(x)}, {"dims", std::vector<int64_t>{d}}});
      case 5: {  // all pairs of samples
        const std::string flat =
            call("aten::reshape", "",
                 {{"self", tensor(x)}, {"shape", std::vector<int64_t>{kSamples, at(x).numel() / kSamples}}});
        const std::string other = call("aten::t", "", {{"self", tensor(flat)}});
        const std::string pairs =
            call("aten::matmul", "", {{"self", tensor(flat)}, {"other", tensor(other)}});
        const std::string weights =
            call("aten::softmax", "int", {{"self", tensor(pairs)}, {"dim", int64_t{-1}}});
        const std::string mixed =
            call("aten::matmul", "", {{"self", tensor(weights)}, {"other", tensor(flat)}});
        return call("aten::reshape", "", {{"self", tensor(mixed)}, {"shape", at(x).sizes().vec()}});
      }
      case 6: {  // a mean of its own, kept in a buffer
        const std::string flat =
            call("aten::reshape", "",
                 {{"self", tensor(x)},
                  {"shape", std::vector<int64_t>{at(x).numel() / at(x).size(-1), at(x).size(-1)}}});
        const std::string mean =
            call("aten::mean", "dim", {{"self", tensor(flat)}, {"dim", std::vector<int64_t>{0}}}, false);
        const std::string kept = buffer({at(x).size(-1)}, 0.1);
        const std::string decayed =
            call("aten::mul_", "Scalar", {{"self", tensor(kept)}, {"other", 0.5}}, false);
        const std::string written =
            call("aten::add_", "Tensor", {{"self", tensor(decayed)}, {"other", tensor(mean)}, {"alpha", 0.5}},
                 false);
        return call("aten::sub", "Tensor", {{"self", tensor(x)}, {"other", tensor(written)}});
      }
      case 7: {
        const std::string peak = call(
            "aten::amax", "", {{"self", tensor(x)}, {"dim", std::vector<int64_t>{d}}, {"keepdim", true}});
        return call("aten::sub", "Tensor", {{"self", tensor(x)}, {"other", tensor(peak)}});
      }
      case 8: {
        const std::string all = call("aten::sum", "", {{"self", tensor(x)}});
        const std::string small = call("aten::mul", "Scalar", {{"self", tensor(all)}, {"other", 0.01}});
        return call("aten::add", "Tensor", {{"self", tensor(x)}, {"other", tensor(small)}});
      }
      case 9: {
        const std::string places =
            call("aten::arange", "", {{"end", kSamples}, {"dtype", DtypeArgument{"float64"}}});
        std::vector<int64_t> shape(static_cast<size_t>(rank(x)), 1);
        shape[0] = kSamples;
        const std::string column = call("aten::reshape", "", {{"self", tensor(places)}, {"shape", shape}});
        const std::string small = call("aten::mul", "Scalar", {{"self", tensor(column)}, {"other", 0.1}});
        return call("aten::add", "Tensor", {{"self", tensor(x)}, {"other", tensor(small)}});
      }
      case 10:
        return joined_and_cut(x, 0);
      default: {
        const std::string first =
            call("aten::slice", "Tensor",
                 {{"self", tensor(x)}, {"dim", d}, {"start", int64_t{0}}, {"end", int64_t{1}}});
        return call("aten::add", "Tensor", {{"self", tensor(x)}, {"other", tensor(first)}});
      }
    }
  }

  std::string flattened(const std::string& x) {
    const std::vector<int64_t> shape = at(x).sizes().vec();
    const std::string flat = call("aten::flatten", "using_ints",
                                  {{"self", tensor(x)}, {"start_dim", int64_t{0}}, {"end_dim", rank(x) - 2}});
    const std::string made = linear(flat, at(x).size(-1));
    return made.empty() ? made : call("aten::view", "", {{"self", tensor(made)}, {"size", shape}});
  }
  std::string transposed(const std::string& x) {
    const int64_t last = rank(x) - 1, other = between(0, last);
    const std::string turned =
        call("aten::transpose", "int", {{"self", tensor(x)}, {"dim0", last}, {"dim1", other}});
    const std::string made =
        call(chance(50) ? "aten::tanh" : "aten::sigmoid", "", {{"self", tensor(turned)}});
    return call("aten::transpose", "int", {{"self", tensor(made)}, {"dim0", last}, {"dim1", other}});
  }
  std::string attention(const std::string& x) {
    if (rank(x) < 3) return {};
    return call("aten::scaled_dot_product_attention", "",
                {{"query", tensor(x)}, {"key", tensor(x)}, {"value", tensor(x)}});
  }
  // As an image of several channels, which are joined by a view, the first of them cut out and bent back.
  std::string convolved(const std::string& x) {
    const std::vector<int64_t> shape = at(x).sizes().vec();
    const int64_t rows = rank(x) == 3 ? shape[1] : 1, channels = between(1, 3);
    const std::string image =
        call("aten::view", "",
             {{"self", tensor(x)}, {"size", std::vector<int64_t>{kSamples, 1, rows, shape.back()}}});
    const std::string made = call("aten::conv2d", "",
                                  {{"input", tensor(image)},
                                   {"weight", tensor(parameter({channels, 1, 1, 3}))},
                                   {"padding", std::vector<int64_t>{0, 1}}});
    const std::string bent = call("aten::sin", "", {{"self", tensor(made)}});  // which may be written
    const int64_t numbers = rows * shape.back();
    const std::string flat =
        call("aten::view", "",
             {{"self", tensor(bent)}, {"size", std::vector<int64_t>{kSamples, channels * numbers}}});
    if (chance(20)) call("aten::mul_", "Scalar", {{"self", tensor(flat)}, {"other", 0.5}});
    const std::string first =
        call("aten::slice", "Tensor",
             {{"self", tensor(flat)}, {"dim", int64_t{1}}, {"start", int64_t{0}}, {"end", numbers}});
    return call("aten::reshape", "", {{"self", tensor(first)}, {"shape", shape}});
  }
  // As torch's attention does: linears of transposed rows, and a sum with what was there before.
  std::string with_time_first(const std::string& x) {
    if (rank(x) < 3) return {};
    const auto turned = [&](const std::string& of) {
      return call("aten::transpose", "int",
                  {{"self", tensor(of)}, {"dim0", int64_t{0}}, {"dim1", int64_t{1}}});
    };
    const std::string made = turned(linear(turned(x), width_));
    const std::string sum = call("aten::add", "Tensor", {{"self", tensor(made)}, {"other", tensor(x)}});
    const std::vector<int64_t> shape = at(x).sizes().vec();
    const std::vector<int64_t> joined = {shape[0], shape[1] * shape[2]};
    // No view of what lies transposed, and then the sum alone.
    const std::string flat = chance(50)
                                 ? call("aten::view", "", {{"self", tensor(sum)}, {"size", joined}})
                                 : call("aten::reshape", "", {{"self", tensor(sum)}, {"shape", joined}});
    return flat.empty() ? sum : call("aten::view", "", {{"self", tensor(flat)}, {"size", shape}});
  }
  std::string picked_rows(const std::string& x) {
    const std::string places = call("aten::arange", "", {{"end", kSamples}});
    return call("aten::index", "Tensor", {{"self", tensor(x)}, {"indices", TensorsArgument{{places}}}});
  }
  std::string expanded(const std::string& x) {
    const std::vector<int64_t> shape = at(x).sizes().vec();
    std::vector<int64_t> one = shape;
    one[0] = 1;
    const std::string wide = call("aten::expand", "", {{"self", tensor(parameter(one))}, {"size", shape}});
    return call("aten::mul", "Tensor", {{"self", tensor(x)}, {"other", tensor(wide)}});
  }
  std::string joined_and_cut(const std::string& x, int64_t d) {
    const std::string turned = call("aten::neg", "", {{"self", tensor(x)}});
    const std::string both = call("aten::cat", "", {{"tensors", TensorsArgument{{x, turned}}}, {"dim", d}});
    const std::string bent = call("aten::sin", "", {{"self", tensor(both)}});
    const int64_t begin = between(0, 1) == 0 ? 0 : at(x).size(d);
    return call("aten::slice", "Tensor",
                {{"self", tensor(bent)}, {"dim", d}, {"start", begin}, {"end", begin + at(x).size(d)}});
  }
  // A buffer that is written with what no sample has a part in.
  std::string counted(const std::string& x) {
    const std::string count = buffer({}, 1);
    const std::string next = call("aten::add_", "Scalar", {{"self", tensor(count)}, {"other", 0.5}}, false);
    const std::string scale = call("aten::reciprocal", "", {{"self", tensor(next)}}, false);
    return call("aten::mul", "Tensor", {{"self", tensor(x)}, {"other", tensor(scale)}});
  }
  std::string in_place(const std::string& x) {
    const std::string copy = call("aten::clone", "", {{"self", tensor(x)}});
    const std::string part =
        call("aten::slice", "Tensor",
             {{"self", tensor(copy)}, {"dim", rank(x) - 1}, {"start", int64_t{0}}, {"end", int64_t{2}}});
    call("aten::mul_", "Scalar", {{"self", tensor(part)}, {"other", 0.5}});
    return call("aten::sin", "", {{"self", tensor(copy)}});
  }

  std::string loss(std::string scores) {
    std::string labels = labels_;
    if (rank(scores) == 3) {  // a row for each position
      scores = call("aten::reshape", "",
                    {{"self", tensor(scores)},
                     {"shape", std::vector<int64_t>{at(scores).numel() / kClasses, kClasses}}});
      labels = call("aten::flatten", "using_ints",
                    {{"self", tensor(labels)}, {"start_dim", int64_t{0}}, {"end_dim", int64_t{-1}}});
    }
    const auto cross_entropy = [&](int64_t reduction, Arguments more = {}) {
      Arguments arguments = {{"self", tensor(scores)}, {"target", tensor(labels)}, {"reduction", reduction}};
      arguments.insert(arguments.end(), more.begin(), more.end());
      return call("aten::cross_entropy_loss", "", std::move(arguments));
    };
    const auto summed = [&](const std::string& of) { return call("aten::sum", "", {{"self", tensor(of)}}); };
    const auto divided = [&](const std::string& a, const std::string& b) {
      return call("aten::div", "Tensor", {{"self", tensor(a)}, {"other", tensor(b)}});
    };
    const auto added = [&](const std::string& a, const std::string& b) {
      return call("aten::add", "Tensor", {{"self", tensor(a)}, {"other", tensor(b)}});
    };
    const auto class_weights = [&] {
      const std::string weights = buffer({kClasses}, 1.5);
      return std::pair<std::string, Argument>{"weight", tensor(weights)};
    };
    const auto mask = [&] {
      const std::string asks = call("aten::ne", "Scalar", {{"self", tensor(labels)}, {"other", int64_t{0}}});
      return call("aten::to", "dtype", {{"self", tensor(asks)}, {"dtype", DtypeArgument{"float64"}}});
    };
    const int64_t ignored = between(0, 2);
    switch (between(0, 16)) {
      case 0:
        loss_kind_ = "mean";
        return cross_entropy(1);
      case 1:
        loss_kind_ = "sum";
        return cross_entropy(2);
      case 2:
        loss_kind_ = "ignored index";
        return cross_entropy(1, {{"ignore_index", ignored}});
      case 3:
        loss_kind_ = "class weights";
        return cross_entropy(1, {class_weights()});
      case 4:
        loss_kind_ = "class weights and ignored index";
        return cross_entropy(1, {class_weights(), {"ignore_index", ignored}});
      case 5:
        loss_kind_ = "label smoothing";
        return cross_entropy(1, {{"ignore_index", ignored}, {"label_smoothing", 0.1}});
      case 6: {
        loss_kind_ = "masked mean";
        const std::string m = mask();
        const std::string each =
            call("aten::mul", "Tensor", {{"self", tensor(cross_entropy(0))}, {"other", tensor(m)}});
        return divided(summed(each),
                       call("aten::clamp", "", {{"self", tensor(summed(m))}, {"min", int64_t{1}}}));
      }
      case 7:
        loss_kind_ = "root of the mean";
        return call("aten::sqrt", "", {{"self", tensor(cross_entropy(1))}});
      case 8:
        loss_kind_ = "sum over samples";
        return call("aten::div", "Scalar", {{"self", tensor(cross_entropy(2))}, {"other", kSamples}});
      case 9:
        loss_kind_ = "sum over a constant";
        return call("aten::div", "Scalar", {{"self", tensor(cross_entropy(2))}, {"other", int64_t{3}}});
      case 10: {
        loss_kind_ = "mean and weights";
        const std::string squares =
            call("aten::mul", "Tensor",
                 {{"self", tensor(graph_.parameters[0].name)}, {"other", tensor(graph_.parameters[0].name)}});
        return call("aten::add", "Tensor",
                    {{"self", tensor(cross_entropy(chance(50) ? 1 : 2))},
                     {"other", tensor(summed(squares))},
                     {"alpha", 0.1}});
      }
      case 11: {
        loss_kind_ = "two means";
        const std::string squares =
            call("aten::mul", "Tensor", {{"self", tensor(scores)}, {"other", tensor(scores)}});
        const std::string mean = call("aten::mean", "", {{"self", tensor(squares)}});
        return added(cross_entropy(1, chance(50) ? Arguments{} : Arguments{{"ignore_index", ignored}}), mean);
      }
      case 12: {
        loss_kind_ = "squares";
        const std::string truth =
            call("aten::one_hot", "", {{"self", tensor(labels)}, {"num_classes", kClasses}});
        const std::string real =
            call("aten::to", "dtype", {{"self", tensor(truth)}, {"dtype", DtypeArgument{"float64"}}});
        const int64_t reduction = between(1, 2);
        if (chance(30)) {  // as torch.export writes it of a dynamic batch
          const auto both =
              call_for(2, "aten::broadcast_tensors", "", {{"tensors", TensorsArgument{{scores, real}}}});
          return call(
              "aten::mse_loss", "",
              {{"self", tensor(both.at(0))}, {"target", tensor(both.at(1))}, {"reduction", reduction}});
        }
        return chance(50)
                   ? call("aten::mse_loss", "",
                          {{"self", tensor(scores)}, {"target", tensor(real)}, {"reduction", reduction}})
                   : call("aten::binary_cross_entropy_with_logits", "",
                          {{"self", tensor(scores)}, {"target", tensor(real)}, {"reduction", reduction}});
      }
      case 13:
        loss_kind_ = "log of a sum";
        return call("aten::logsumexp", "",
                    {{"self", tensor(cross_entropy(0))}, {"dim", std::vector<int64_t>{0}}});
      case 15: {
        loss_kind_ = "sum over positives";  // which may be none where the sum is not 0
        const std::string m = mask();
        const std::string positives = summed(m);
        const std::string all = divided(cross_entropy(2), positives);
        if (chance(50)) return all;
        loss_kind_ = "sums over positives";
        return added(all, divided(summed(call("aten::mul", "Tensor",
                                              {{"self", tensor(cross_entropy(0))}, {"other", tensor(m)}})),
                                  positives));
      }
      case 14:
        loss_kind_ = "largest";
        return call("aten::max", "", {{"self", tensor(cross_entropy(0))}});
      default: {
        loss_kind_ = "weights that add up to one";
        const std::string m = mask();
        const std::string shares = divided(m, summed(m));
        return summed(
            call("aten::mul", "Tensor", {{"self", tensor(cross_entropy(0))}, {"other", tensor(shares)}}));
      }
    }
  }

  std::mt19937_64 random_;
  Graph graph_;
  std::map<std::string, Initialiser> starts_;
  std::map<std::string, at::Tensor> tensors_;
  std::string labels_, loss_kind_;
  int64_t width_ = 4;
};

}  // namespace pipewright::testing
