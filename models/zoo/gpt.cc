// A decoder as in GPT-2 (Radford et al. 2019), with its names for parameters and its starts: weights from
// N(0, 0.02), those that end a residual branch from N(0, 0.02 / sqrt(2 layers)), biases from 0. The head is
// not tied to the embedding.
#include <cmath>

#include "models/zoo/attention.h"
#include "models/zoo/named_layers.h"
#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

struct GptOptions {
  int64_t layers, width, heads, tokens, vocabulary;
  double dropout;
};

class GptBuilder : private NamedLayers {
 public:
  GptBuilder(ModelBuilder& model, const GptOptions& options)
      : NamedLayers(model, options.dropout), options_(options) {}

  std::string scores(const std::string& tokens) {
    std::string x;
    {
      auto transformer = model_.layer("transformer");
      x = drop("drop", embed(tokens));
      for (int64_t i = 0; i < options_.layers; ++i) {
        auto block = model_.layer("h." + std::to_string(i));
        x = add("add1", x, attention(norm("ln_1", x)));
        x = add("add2", x, perceptron(norm("ln_2", x)));
      }
      x = norm("ln_f", x);
    }
    return linear("lm_head", x, {.features = options_.vocabulary, .bias = false}, kDeviation);
  }

 private:
  static constexpr double kDeviation = 0.02;
  double branch_deviation() const {
    return kDeviation / std::sqrt(2.0 * static_cast<double>(options_.layers));
  }

  std::string embed(const std::string& tokens) {
    std::string x;
    {
      auto layer = model_.layer("wte");
      x = model_.embedding(tokens, {.rows = options_.vocabulary,
                                    .features = options_.width,
                                    .weight_start = Initialiser::normal(0, kDeviation)});
    }
    // Every sample has all positions: what torch looks up with arange is the whole table.
    auto layer = model_.layer("wpe");
    const std::string positions =
        model_.parameter("weight", {options_.tokens, options_.width}, Initialiser::normal(0, kDeviation));
    return model_.add(x, positions);
  }

  std::string attention(const std::string& x) {
    auto layer = model_.layer("attn");
    const std::string together = linear("c_attn", x, {.features = 3 * options_.width}, kDeviation);
    const std::string y =
        multi_head_attention(model_, model_.split(together, options_.width, 2),
                             {.heads = options_.heads, .is_causal = true, .dropout = options_.dropout});
    return drop("resid_dropout", linear("c_proj", y, {.features = options_.width}, branch_deviation()));
  }

  std::string perceptron(const std::string& x) {
    auto layer = model_.layer("mlp");
    std::string y = linear("c_fc", x, {.features = 4 * options_.width}, kDeviation);
    {
      auto activation = model_.layer("gelu");
      y = model_.gelu(y);
    }
    return drop("dropout", linear("c_proj", y, {.features = options_.width}, branch_deviation()));
  }

  std::string linear(const std::string& name, const std::string& x, LinearOptions options, double deviation) {
    auto layer = model_.layer(name);
    options.weight_start = Initialiser::normal(0, deviation);
    options.bias_start = Initialiser::constant(0);
    return model_.linear(x, options);
  }

  GptOptions options_;
};

}  // namespace

Model build_gpt(ModelOptions& options, int64_t batch_size) {
  const GptOptions gpt = {.layers = options.integer("layers", 4, 1, 1000),
                          .width = options.integer("width", 128, 1, 1 << 16),
                          .heads = options.integer("heads", 4, 1, 1 << 10),
                          .tokens = options.integer("tokens", 64, 1, 1 << 20),
                          .vocabulary = options.integer("vocabulary", 256, 2, 1 << 22),
                          .dropout = options.number("dropout", 0, 0, 0.99)};
  check_heads(options, gpt.width, gpt.heads);
  ModelBuilder model(options.spec().text(), batch_size);
  return model.finish_classification(
      GptBuilder(model, gpt).scores(model.input("tokens", "int64", {gpt.tokens})));
}

}  // namespace pipewright
