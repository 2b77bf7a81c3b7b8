// GNMT (Wu et al. 2016) as MLPerf's reference and PipeDream train it, with the reference's names: an encoder
// and a decoder of layers/2 LSTMs each (GNMT-8: 4 and 4), the encoder's first one in both directions,
// residual connections from the third encoder and the third decoder layer on, normalised additive attention
// (Bahdanau et al. 2014) from the decoder's first layer, read by all later ones. Weights and biases start
// from U(-0.1, 0.1), an LSTM's second bias from 0.
//
// Sentences have a fixed length; token 0 fills them up. A padded sentence gives the numbers that torch gives
// for a packed one: what is behind its end reaches nothing before it, since the backward direction reads each
// sentence turned round within its own length, and attention leaves padding out.
#include <cmath>
#include <limits>

#include "models/zoo/named_layers.h"
#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

const Initialiser kStart = Initialiser::uniform(0.1);

struct GnmtOptions {
  int64_t layers, width, source, target, vocabulary;
  double dropout, smoothing;
  bool shared;
};

class GnmtBuilder : private NamedLayers {
 public:
  GnmtBuilder(ModelBuilder& model, const GnmtOptions& options)
      : NamedLayers(model, options.dropout), options_(options) {}

  std::string scores(const std::string& source, const std::string& target) {
    const std::string context = encode(source);
    return decode(target, context, source);
  }

 private:
  using Arguments = std::vector<std::pair<std::string, Argument>>;

  std::string encode(const std::string& source) {
    auto encoder = model_.layer("encoder");
    std::string x = embed(source);
    x = drop("dropout0", x);
    x = both_directions(source, x);
    x = lstm("rnn_layers.1", "l0", drop("dropout1", x));
    for (int64_t i = 2; i < options_.layers / 2; ++i) {
      const std::string number = std::to_string(i);
      x = add("add" + number, lstm("rnn_layers." + number, "l0", drop("dropout" + number, x)), x);
    }
    return x;
  }

  std::string decode(const std::string& target, const std::string& context, const std::string& source) {
    auto decoder = model_.layer("decoder");
    std::string x = embed(target);
    std::string attended;
    {
      auto layer = model_.layer("att_rnn");
      x = lstm("rnn", "l0", drop("dropout", x));
      attended = attention(x, context, source);
    }
    for (int64_t i = 0; i < options_.layers / 2 - 1; ++i) {
      const std::string number = std::to_string(i);
      std::string y;
      {
        auto layer = model_.layer("cat" + number);
        y = model_.concatenate({x, attended}, 2);
      }
      y = lstm("rnn_layers." + number, "l0", drop("dropout" + number, y));
      x = i == 0 ? y : add("add" + number, y, x);
    }
    auto layer = model_.layer("classifier.classifier");
    return model_.linear(x, {.features = options_.vocabulary, .weight_start = kStart, .bias_start = kStart});
  }

  std::string embed(const std::string& tokens) {
    auto layer = model_.layer("embedder");
    const std::vector<int64_t> table = {options_.vocabulary, options_.width};
    if (embedding_.empty() || !options_.shared) embedding_ = model_.parameter("weight", table, kStart);
    std::vector<int64_t> shape = model_.shape(tokens);
    shape.push_back(options_.width);
    // padding_idx: the row of what fills up learns nothing.
    return model_.call_one(
        "embedding", "",
        {{"weight", named(embedding_)}, {"indices", named(tokens)}, {"padding_idx", int64_t{0}}}, shape);
  }

  /// torch.nn.LSTM's layer "NAME", its parameters ending in `suffix`: (batch, tokens, in) to (batch, tokens,
  /// width).
  std::string lstm(const std::string& name, const std::string& suffix, const std::string& x) {
    auto layer = model_.layer(name);
    auto together = model_.together();
    const int64_t width = options_.width, in = model_.shape(x)[2];
    TensorsArgument parameters = {
        {model_.parameter("weight_ih_" + suffix, {4 * width, in}, kStart),
         model_.parameter("weight_hh_" + suffix, {4 * width, width}, kStart),
         model_.parameter("bias_ih_" + suffix, {4 * width}, kStart),
         model_.parameter("bias_hh_" + suffix, {4 * width}, Initialiser::constant(0))}};
    // The first state: zeros, as many as there are samples, made from the first token's values.
    const int64_t batch = model_.batch_size();
    std::string first = model_.call_one(
        "select", "int", {{"self", named(x)}, {"dim", int64_t{1}}, {"index", int64_t{0}}}, {batch, in});
    if (in != width) {
      first = model_.call_one(
          "narrow", "",
          {{"self", named(first)}, {"dim", int64_t{1}}, {"start", int64_t{0}}, {"length", width}},
          {batch, width});
    }
    const std::string zeros = model_.call_one("zeros_like", "", {{"self", named(first)}}, {batch, width});
    const std::string state =
        model_.call_one("unsqueeze", "", {{"self", named(zeros)}, {"dim", int64_t{0}}}, {1, batch, width});
    std::vector<int64_t> shape = model_.shape(x);
    shape[2] = width;
    return model_.call(
        "lstm", "input",
        {{"input", named(x)},
         {"hx", TensorsArgument{{state, state}}},
         {"params", parameters},
         {"has_biases", true},
         {"num_layers", int64_t{1}},
         {"dropout", 0.0},
         {"train", true},
         {"bidirectional", false},
         {"batch_first", true}},
        {{"float32", shape}, {"float32", {1, batch, width}}, {"float32", {1, batch, width}}})[0];
  }

  std::string both_directions(const std::string& source, const std::string& x) {
    const std::string forward = lstm("rnn_layers.0", "l0", x);
    std::string order;
    std::string turned;
    {
      auto layer = model_.layer("turn");
      order = turning_order(source);
      turned = reordered(x, order);
    }
    turned = lstm("rnn_layers.0", "l0_reverse", turned);
    auto layer = model_.layer("turn_back");
    return model_.concatenate({forward, reordered(turned, order)}, 2);
  }

  /// int64 (batch, tokens): position i of a sentence of n tokens is turned to n - 1 - i, and the places
  /// behind its end among themselves: (n - 1 - i) modulo the length. Turning twice gives the sentence back.
  std::string turning_order(const std::string& source) {
    const std::vector<int64_t> shape = model_.shape(source);
    const std::string used =
        model_.call_one("ne", "Scalar", {{"self", named(source)}, {"other", int64_t{0}}}, shape, "bool");
    const std::string length = model_.call_one(
        "sum", "dim_IntList", {{"self", named(used)}, {"dim", std::vector<int64_t>{1}}, {"keepdim", true}},
        {shape[0], 1}, "int64");
    const std::string ones = model_.call_one("ones_like", "", {{"self", named(source)}}, shape, "int64");
    const std::string place =
        model_.call_one("cumsum", "", {{"self", named(ones)}, {"dim", int64_t{1}}}, shape, "int64");
    const std::string difference =
        model_.call_one("sub", "Tensor", {{"self", named(length)}, {"other", named(place)}}, shape, "int64");
    return model_.call_one("remainder", "Scalar", {{"self", named(difference)}, {"other", options_.source}},
                           shape, "int64");
  }

  std::string reordered(const std::string& x, const std::string& order) {
    std::vector<int64_t> shape = model_.shape(order);
    shape.push_back(1);
    const std::string column =
        model_.call_one("unsqueeze", "", {{"self", named(order)}, {"dim", int64_t{2}}}, shape, "int64");
    const std::string index = model_.call_one("expand_as", "", {{"self", named(column)}, {"other", named(x)}},
                                              model_.shape(x), "int64");
    return model_.call_one("gather", "", {{"self", named(x)}, {"dim", int64_t{1}}, {"index", named(index)}},
                           model_.shape(x));
  }

  /// (batch, target, width): for each target position a mean of the context, weighted by
  /// softmax(g / |v| * v . tanh(W q + U k + b)).
  std::string attention(const std::string& query, const std::string& context, const std::string& source) {
    auto layer = model_.layer("attn");
    const int64_t width = options_.width, batch = model_.batch_size();
    const std::string q = linear("linear_q", query);
    const std::string k = linear("linear_k", context);
    const double bound = 1 / std::sqrt(static_cast<double>(width));
    const std::string direction = model_.parameter("linear_att", {width}, Initialiser::uniform(bound));
    const std::string scale = model_.parameter("normalize_scalar", {1}, Initialiser::constant(bound));
    const std::string bias = model_.parameter("normalize_bias", {width}, Initialiser::constant(0));
    const auto unsqueezed = [&](const std::string& x, int64_t dim, std::vector<int64_t> shape,
                                const std::string& dtype) {
      shape.insert(shape.begin() + dim, 1);
      return model_.call_one("unsqueeze", "", {{"self", named(x)}, {"dim", dim}}, shape, dtype);
    };
    const std::vector<int64_t> shape = {batch, options_.target, options_.source};
    std::string weights;
    {
      // One stage: what |v| is of belongs to it, and the sum of q and k is the largest value of the model.
      auto together = model_.together();
      const std::string biased = model_.add(q, bias);
      std::string sum = model_.add(unsqueezed(biased, 2, model_.shape(q), "float32"),
                                   unsqueezed(k, 1, model_.shape(k), "float32"));
      sum = model_.call_one("tanh", "", {{"self", named(sum)}}, model_.shape(sum));
      const std::string norm = model_.call_one("norm", "Scalar", {{"self", named(direction)}}, {});
      std::string unit =
          model_.call_one("div", "Tensor", {{"self", named(direction)}, {"other", named(norm)}}, {width});
      unit = model_.call_one("mul", "Tensor", {{"self", named(unit)}, {"other", named(scale)}}, {width});
      weights = model_.call_one("matmul", "", {{"self", named(sum)}, {"other", named(unit)}}, shape);
    }
    const std::string padding = model_.call_one(
        "eq", "Scalar", {{"self", named(source)}, {"other", int64_t{0}}}, model_.shape(source), "bool");
    weights = model_.call_one("masked_fill", "Scalar",
                              {{"self", named(weights)},
                               {"mask", named(unsqueezed(padding, 1, model_.shape(source), "bool"))},
                               {"value", -65504.0}},
                              shape);
    weights = model_.call_one("softmax", "int", {{"self", named(weights)}, {"dim", int64_t{2}}}, shape);
    return model_.call_one("matmul", "", {{"self", named(weights)}, {"other", named(context)}},
                           {batch, options_.target, width});
  }

  std::string linear(const std::string& name, const std::string& x) {
    auto layer = model_.layer(name);
    return model_.linear(x, {.features = options_.width, .bias = false, .weight_start = kStart});
  }

  GnmtOptions options_;
  std::string embedding_;  // the last one made
};

}  // namespace

Model build_gnmt(ModelOptions& options, int64_t batch_size) {
  const GnmtOptions gnmt = {
      .layers = options.integer("layers", 8, 4, 1000),
      .width = options.integer("width", 1024, 1, 1 << 16),
      .source = options.integer("source", 50, 1, 1 << 16),
      .target = options.integer("target", 50, 1, 1 << 16),
      .vocabulary = options.integer("vocabulary", 32320, 4, 1 << 22),
      .dropout = options.number("dropout", 0.2, 0, 0.99),
      .smoothing = options.number("smoothing", 0.1, 0, 0.99),
      .shared = options.choice("embedding", "separate", {"separate", "shared"}) == "shared"};
  if (gnmt.layers % 2 != 0) {
    options.fail("layers", "got " + std::to_string(gnmt.layers) +
                               ", expected an even number: half of them encode, half decode");
  }
  ModelBuilder model(options.spec().text(), batch_size);
  const std::string source = model.input("source", "int64", {gnmt.source});
  const std::string target = model.input("target", "int64", {gnmt.target});
  return model.finish_classification(GnmtBuilder(model, gnmt).scores(source, target), gnmt.smoothing);
}

}  // namespace pipewright
