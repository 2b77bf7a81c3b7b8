// BERT (Devlin et al. 2018) with the names of transformers: post-norm blocks under three heads.
// BertForMaskedLM, all positions in one segment, none padding, the head's weight tied to the embedding;
// BertForSequenceClassification and BertForQuestionAnswering, which take a mask and segments. Weights start
// from N(0, 0.02), biases from 0. With a next-sentence loss the first is BertForPreTraining.
#include "models/zoo/attention.h"
#include "models/zoo/named_layers.h"
#include "models/zoo/zoo.h"

namespace pipewright {
namespace {

constexpr double kBertNormEpsilon = 1e-12;
constexpr int64_t kSegments = 2;
const Initialiser kWeightStart = Initialiser::normal(0, 0.02);

struct BertOptions {
  int64_t layers, width, heads, tokens, positions, vocabulary;
  double dropout;
};

/// Fields of a minibatch, int64 (batch, tokens).
struct BertInputs {
  std::string tokens;
  std::string mask = {};      ///< 0 for padding, which is not attended; "" = there is none
  std::string segments = {};  ///< 0 or 1; "" = all 0
};

class BertBuilder : private NamedLayers {
 public:
  BertBuilder(ModelBuilder& model, const BertOptions& options)
      : NamedLayers(model, options.dropout, kBertNormEpsilon), options_(options) {}

  /// (batch, tokens, width)
  std::string encoded(const BertInputs& inputs) {
    auto bert = model_.layer("bert");
    if (!inputs.mask.empty()) attended_ = attended(inputs.mask);
    std::string x = embed(inputs);
    for (int64_t i = 0; i < options_.layers; ++i) {
      auto block = model_.layer("encoder.layer." + std::to_string(i));
      x = attention(x);
      x = perceptron(x);
    }
    return x;
  }

  /// Of each token, (batch, tokens, vocabulary). `tied`: the last weight is the embedding's.
  std::string word_scores(std::string x, bool tied) {
    auto layer = model_.layer("cls.predictions");
    const std::string bias = model_.parameter("bias", {options_.vocabulary}, Initialiser::constant(0));
    {
      auto inner = model_.layer("transform");
      x = norm("LayerNorm", gelu(linear("dense", x, options_.width)));
    }
    auto inner = model_.layer("decoder");
    const std::string weight =
        tied ? "bert.embeddings.word_embeddings.weight"
             : model_.parameter("weight", {options_.vocabulary, options_.width}, kWeightStart);
    std::vector<int64_t> shape = model_.shape(x);
    shape.back() = options_.vocabulary;
    return model_.call_one("linear", "",
                           {{"input", named(x)}, {"weight", named(weight)}, {"bias", named(bias)}}, shape);
  }

  /// Of the first token, (batch, classes).
  std::string class_scores(const std::string& x, int64_t classes) {
    return linear("classifier", drop("dropout", pooled(x)), classes);
  }

  /// Whether the second text follows the first, (batch, 2): 0 that it does.
  std::string next_sentence_scores(const std::string& x) {
    const std::string pooled_x = pooled(x);
    auto layer = model_.layer("cls");
    return linear("seq_relationship", pooled_x, 2);
  }

  /// How well an answer begins and ends at each token, (batch, 2, tokens).
  std::string span_scores(const std::string& x) {
    const std::string scores = linear("qa_outputs", x, 2);
    auto layer = model_.layer("qa_outputs");
    return model_.transpose(scores, 1, 2);
  }

 private:
  /// Of the first token, (batch, width).
  std::string pooled(std::string x) {
    auto layer = model_.layer("bert.pooler");
    x = model_.call_one("select", "int", {{"self", named(x)}, {"dim", int64_t{1}}, {"index", int64_t{0}}},
                        {model_.batch_size(), options_.width});
    x = linear("dense", x, options_.width);
    auto inner = model_.layer("activation");
    return model_.call_one("tanh", "", {{"self", named(x)}}, model_.shape(x));
  }

  /// bool (batch, 1, 1, tokens), made in each stage anew: it is smaller than what a cut would carry.
  std::string attended(const std::string& mask) {
    auto layer = model_.layer("attention_mask");
    auto everywhere = model_.everywhere();
    const std::string there = model_.call_one("ne", "Scalar", {{"self", named(mask)}, {"other", int64_t{0}}},
                                              model_.shape(mask), "bool");
    return model_.reshape(there, {-1, 1, 1, options_.tokens});
  }

  std::string embed(const BertInputs& inputs) {
    auto layer = model_.layer("embeddings");
    std::string x;
    {
      auto inner = model_.layer("word_embeddings");
      x = model_.embedding(inputs.tokens, {options_.vocabulary, options_.width, kWeightStart});
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
      const std::string segments = inputs.segments.empty()
                                       ? model_.call_one("zeros_like", "", {{"self", named(inputs.tokens)}},
                                                         model_.shape(inputs.tokens), "int64")
                                       : inputs.segments;
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
                               {.heads = options_.heads, .dropout = options_.dropout, .mask = attended_});
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
  std::string attended_;  // "" = all tokens
};

BertOptions bert_options(ModelOptions& options, int64_t tokens) {
  const BertOptions bert = {.layers = options.integer("layers", 12, 1, 1000),
                            .width = options.integer("width", 768, 1, 1 << 16),
                            .heads = options.integer("heads", 12, 1, 1 << 10),
                            .tokens = options.integer("tokens", tokens, 1, 1 << 20),
                            .positions = options.integer("positions", 512, 1, 1 << 20),
                            .vocabulary = options.integer("vocabulary", 30522, 2, 1 << 22),
                            .dropout = options.number("dropout", 0.1, 0, 0.99)};
  check_heads(options, bert.width, bert.heads);
  if (bert.tokens > bert.positions) {
    options.fail("tokens", "got " + std::to_string(bert.tokens) +
                               ", expected at most positions=" + std::to_string(bert.positions));
  }
  return bert;
}

BertInputs padded_inputs(ModelBuilder& model, int64_t tokens) {
  return {model.input("tokens", "int64", {tokens}), model.input("mask", "int64", {tokens}),
          model.input("segments", "int64", {tokens})};
}

/// Mean of the cross entropies of where answers begin and of where they end.
std::string span_loss(ModelBuilder& model, const std::string& scores) {
  const std::string starts = model.input("starts", "int64", {}), ends = model.input("ends", "int64", {});
  auto layer = model.layer("loss");
  const std::vector<int64_t> shape = model.shape(scores);
  const std::string both =
      model.call_one("stack", "", {{"tensors", TensorsArgument{{starts, ends}}}, {"dim", int64_t{1}}},
                     {shape[0], shape[1]}, "int64");
  const std::string rows = model.reshape(scores, {-1, shape[2]});
  return model.cross_entropy_loss(rows, model.reshape(both, {-1}));
}

}  // namespace

Model build_bert(ModelOptions& options, int64_t batch_size) {
  const BertOptions bert = bert_options(options, 128);
  const bool tied = options.choice("head", "tied", {"tied", "separate"}) == "tied";
  const bool next_sentence = options.choice("next_sentence", "no", {"no", "yes"}) == "yes";
  ModelBuilder model(options.spec().text(), batch_size);
  BertBuilder net(model, bert);
  if (!next_sentence) {
    const std::string x = net.encoded({model.input("tokens", "int64", {bert.tokens})});
    return model.finish_classification(net.word_scores(x, tied));
  }
  const std::string x = net.encoded(padded_inputs(model, bert.tokens));
  const std::string follows = net.next_sentence_scores(x);
  const std::string words = net.word_scores(x, tied);
  const std::string word_loss = model.classification_loss(words);
  const std::string labels = model.input("next_sentence_labels", "int64", {});
  auto layer = model.layer("loss");
  const std::string next_loss = model.cross_entropy_loss(follows, labels);
  return model.finish(model.add(word_loss, next_loss), words);
}

Model build_bert_classifier(ModelOptions& options, int64_t batch_size) {
  const int64_t classes = options.integer("classes", 2, 2, 1 << 20);
  const BertOptions bert = bert_options(options, 128);
  ModelBuilder model(options.spec().text(), batch_size);
  BertBuilder net(model, bert);
  return model.finish_classification(
      net.class_scores(net.encoded(padded_inputs(model, bert.tokens)), classes));
}

Model build_bert_span(ModelOptions& options, int64_t batch_size) {
  const BertOptions bert = bert_options(options, 384);
  ModelBuilder model(options.spec().text(), batch_size);
  BertBuilder net(model, bert);
  const std::string scores = net.span_scores(net.encoded(padded_inputs(model, bert.tokens)));
  return model.finish(span_loss(model, scores), scores);
}

}  // namespace pipewright
