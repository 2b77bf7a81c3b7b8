// BERT (Devlin et al. 2018) as a masked language model, with the names of transformers' BertForMaskedLM:
// post-norm blocks, all positions in one segment, the head's weight tied to the embedding. Weights start from
// N(0, 0.02), biases from 0.
#include "models/zoo/attention.h"
#include "models/zoo/named_layers.h"
#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

constexpr double kNormEpsilon = 1e-12;
constexpr int64_t kSegments = 2;
const Initialiser kWeightStart = Initialiser::normal(0, 0.02);

struct BertOptions {
  int64_t layers, width, heads, tokens, positions, vocabulary;
  double dropout;
  bool tied;
};

class BertBuilder : private NamedLayers {
 public:
  BertBuilder(ModelBuilder& model, const BertOptions& options)
      : NamedLayers(model, options.dropout, kNormEpsilon), options_(options) {}

  std::string scores(const std::string& tokens) {
    std::string words;
    std::string x;
    {
      auto bert = model_.layer("bert");
      x = embed(tokens, words);
      for (int64_t i = 0; i < options_.layers; ++i) {
        auto block = model_.layer("encoder.layer." + std::to_string(i));
        x = attention(x);
        x = perceptron(x);
      }
    }
    return head(x, words);
  }

 private:
  std::string embed(const std::string& tokens, std::string& words) {
    auto layer = model_.layer("embeddings");
    std::string x;
    {
      auto inner = model_.layer("word_embeddings");
      x = model_.embedding(tokens, {options_.vocabulary, options_.width, kWeightStart});
      words = "bert.embeddings.word_embeddings.weight";
    }
    {
      auto inner = model_.layer("position_embeddings");
      auto together = model_.together();
      const std::string table =
          model_.parameter("weight", {options_.positions, options_.width}, kWeightStart);
      const std::string rows = model_.call_one(
          "narrow", "",
          {{"self", named(table)}, {"dim", int64_t{0}}, {"start", int64_t{0}}, {"length", options_.tokens}},
          {options_.tokens, options_.width});
      x = model_.add(x, rows);
    }
    {
      auto inner = model_.layer("token_type_embeddings");
      const std::string segments =
          model_.call_one("zeros_like", "", {{"self", named(tokens)}}, model_.shape(tokens), "int64");
      x = model_.add(x, model_.embedding(segments, {kSegments, options_.width, kWeightStart}));
    }
    return drop("dropout", norm("LayerNorm", x));
  }

  std::string attention(const std::string& x) {
    auto layer = model_.layer("attention");
    std::string y;
    {
      auto self = model_.layer("self");
      const std::string query = linear("query", x, options_.width);
      const std::string key = linear("key", x, options_.width);
      const std::string value = linear("value", x, options_.width);
      y = multi_head_attention(model_, {query, key, value},
                               {.heads = options_.heads, .dropout = options_.dropout});
    }
    return joined(y, x);
  }

  std::string perceptron(const std::string& x) {
    std::string y;
    {
      auto layer = model_.layer("intermediate");
      y = gelu(linear("dense", x, 4 * options_.width));
    }
    return joined(y, x);
  }

  /// What ends a residual branch.
  std::string joined(const std::string& branch, const std::string& x) {
    auto layer = model_.layer("output");
    std::string y = drop("dropout", linear("dense", branch, options_.width));
    {
      auto inner = model_.layer("add");
      y = model_.add(y, x);
    }
    return norm("LayerNorm", y);
  }

  std::string head(std::string x, const std::string& words) {
    auto layer = model_.layer("cls.predictions");
    const std::string bias = model_.parameter("bias", {options_.vocabulary}, Initialiser::constant(0));
    {
      auto inner = model_.layer("transform");
      x = norm("LayerNorm", gelu(linear("dense", x, options_.width)));
    }
    auto inner = model_.layer("decoder");
    const std::string weight =
        options_.tied ? words
                      : model_.parameter("weight", {options_.vocabulary, options_.width}, kWeightStart);
    std::vector<int64_t> shape = model_.shape(x);
    shape.back() = options_.vocabulary;
    return model_.call_one("linear", "",
                           {{"input", named(x)}, {"weight", named(weight)}, {"bias", named(bias)}}, shape);
  }

  std::string linear(const std::string& name, const std::string& x, int64_t features) {
    auto layer = model_.layer(name);
    return model_.linear(
        x, {.features = features, .weight_start = kWeightStart, .bias_start = Initialiser::constant(0)});
  }

  std::string gelu(const std::string& x) {
    auto layer = model_.layer("gelu");
    return model_.gelu(x);
  }

  BertOptions options_;
};

}  // namespace

Model build_bert(ModelOptions& options, int64_t batch_size) {
  const BertOptions bert = {.layers = options.integer("layers", 12, 1, 1000),
                            .width = options.integer("width", 768, 1, 1 << 16),
                            .heads = options.integer("heads", 12, 1, 1 << 10),
                            .tokens = options.integer("tokens", 128, 1, 1 << 20),
                            .positions = options.integer("positions", 512, 1, 1 << 20),
                            .vocabulary = options.integer("vocabulary", 30522, 2, 1 << 22),
                            .dropout = options.number("dropout", 0.1, 0, 0.99),
                            .tied = options.choice("head", "tied", {"tied", "separate"}) == "tied"};
  check_heads(options, bert.width, bert.heads);
  if (bert.tokens > bert.positions) {
    options.fail("tokens", "got " + std::to_string(bert.tokens) +
                               ", expected at most positions=" + std::to_string(bert.positions));
  }
  ModelBuilder model(options.spec().text(), batch_size);
  return model.finish_classification(
      BertBuilder(model, bert).scores(model.input("tokens", "int64", {bert.tokens})));
}

}  // namespace pipewright
