// What a loss compares with what, read from graphs as exports and the zoo have them.
#include "models/definition/scoring.h"

#include <catch2/catch.hpp>

#include "models/definition/model.h"
#include "models/zoo/registry.h"

namespace pipewright {
namespace {

using Shape = std::vector<int64_t>;
using Arguments = std::vector<std::pair<std::string, Argument>>;

TensorArgument tensor(const std::string& name) { return {name}; }

// Node by node; each makes one value, of its name.
class Written {
 public:
  Written& input(const std::string& name, const std::string& dtype, Shape shape) {
    graph_.inputs.push_back(name);
    graph_.values[name] = {dtype, std::move(shape)};
    return *this;
  }
  Written& call(const std::string& name, const std::string& op, Arguments arguments, Shape shape,
                const std::string& dtype = "float32") {
    graph_.nodes.push_back({name, "aten::" + op, "", std::move(arguments), {name}, ""});
    graph_.values[name] = {dtype, std::move(shape)};
    return *this;
  }
  Written& loss(const std::string& scores, const std::string& targets, Arguments more = {}) {
    more.insert(more.begin(), {{"self", tensor(scores)}, {"target", tensor(targets)}});
    return call("loss", "cross_entropy_loss", std::move(more), {});
  }
  Graph handing_out(std::vector<std::string> outputs) {
    graph_.outputs = std::move(outputs);
    return graph_;
  }

 private:
  Graph graph_;
};

TEST_CASE("scoring: the dimension of the classes is the cross entropy's, wherever the scores have it") {
  const Graph pixels = Written()
                           .input("z", "float32", {4, 8, 8, 8})
                           .input("labels", "int64", {4, 8, 8})
                           .loss("z", "labels", {{"ignore_index", int64_t{255}}})
                           .handing_out({"loss", "z"});
  const auto segmentation = scoring_of(pixels);
  REQUIRE(segmentation);
  CHECK(segmentation->dimension == 1);
  CHECK(segmentation->classes == 8);
  CHECK(segmentation->ignored == 255);
  CHECK(segmentation->labels == "labels");
  CHECK(segmentation->aligned);
  CHECK(segmentation->is_loss);
  CHECK(!segmentation->is_text);

  // (n, t, c) as (n, c, t), and as (n * t, c) after a permutation to (n, h, w, c).
  const auto last =
      scoring_of(Written()
                     .input("z", "float32", {4, 6, 5})
                     .input("labels", "int64", {4, 6})
                     .call("rows", "transpose",
                           {{"self", tensor("z")}, {"dim0", int64_t{1}}, {"dim1", int64_t{-1}}}, {4, 5, 6})
                     .loss("rows", "labels")
                     .handing_out({"loss", "z"}));
  REQUIRE(last);
  CHECK(last->dimension == 2);
  CHECK(last->aligned);
  const auto permuted = scoring_of(
      Written()
          .input("z", "float32", {4, 3, 2, 2})
          .input("labels", "int64", {4, 2, 2})
          .call("moved", "permute", {{"self", tensor("z")}, {"dims", Shape{0, 2, 3, 1}}}, {4, 2, 2, 3})
          .call("rows", "reshape", {{"self", tensor("moved")}, {"shape", Shape{-1, 3}}}, {16, 3})
          .call("flat", "view", {{"self", tensor("labels")}, {"size", Shape{-1}}}, {16}, "int64")
          .loss("rows", "flat")
          .handing_out({"loss", "z"}));
  REQUIRE(permuted);
  CHECK(permuted->dimension == 1);
  CHECK(permuted->aligned);

  // Positions first: the classes are known, but labels stand in another order.
  const auto turned =
      scoring_of(Written()
                     .input("z", "float32", {6, 4, 5})
                     .input("labels", "int64", {4, 6})
                     .call("samples", "transpose",
                           {{"self", tensor("z")}, {"dim0", int64_t{0}}, {"dim1", int64_t{1}}}, {4, 6, 5})
                     .call("rows", "reshape", {{"self", tensor("samples")}, {"shape", Shape{-1, 5}}}, {24, 5})
                     .call("flat", "view", {{"self", tensor("labels")}, {"size", Shape{-1}}}, {24}, "int64")
                     .loss("rows", "flat")
                     .handing_out({"loss", "z"}));
  REQUIRE(turned);
  CHECK(turned->dimension == 2);
  CHECK(!turned->aligned);
}

TEST_CASE("scoring: logarithms and what the loss makes of the scores") {
  const auto written = [](const std::string& op, const std::string& handed_out) {
    return scoring_of(
        Written()
            .input("z", "float32", {4, 3})
            .input("labels", "int64", {4})
            .call("scaled", "div", {{"self", tensor("z")}, {"other", 2.0}}, {4, 3})
            .call("logarithms", "log_softmax", {{"self", tensor("scaled")}, {"dim", int64_t{1}}}, {4, 3})
            .call("shares", "softmax", {{"self", tensor("z")}, {"dim", int64_t{1}}}, {4, 3})
            .call("loss", op, {{"self", tensor("logarithms")}, {"target", tensor("labels")}}, {})
            .handing_out({"loss", handed_out}));
  };
  for (const char* op : {"nll_loss", "nll_loss_nd", "nll_loss2d"}) {
    for (const char* handed_out : {"z", "shares", "scaled", "logarithms"}) {
      CAPTURE(op, handed_out);
      const auto scoring = written(op, handed_out);
      REQUIRE(scoring);
      CHECK(scoring->dimension == 1);
      CHECK(scoring->scores == "logarithms");
    }
  }
}

TEST_CASE("scoring: shifted labels are the field's, but not one for one") {
  const auto sliced = [](Written& graph) -> Written& {
    return graph
        .call("front", "slice", {{"self", tensor("z")}, {"dim", int64_t{1}}, {"end", int64_t{-1}}}, {4, 5, 9})
        .call("behind", "slice", {{"self", tensor("labels")}, {"dim", int64_t{1}}, {"start", int64_t{1}}},
              {4, 5}, "int64")
        .call("rows", "reshape", {{"self", tensor("front")}, {"shape", Shape{-1, 9}}}, {20, 9})
        .call("flat", "reshape", {{"self", tensor("behind")}, {"shape", Shape{-1}}}, {20}, "int64")
        .loss("rows", "flat");
  };
  Written graph;
  graph.input("z", "float32", {4, 6, 9}).input("labels", "int64", {4, 6});
  const auto scoring = scoring_of(sliced(graph).handing_out({"loss", "z"}));
  REQUIRE(scoring);
  CHECK(scoring->dimension == 2);
  CHECK(scoring->labels == "labels");
  CHECK(!scoring->aligned);

  // As a library pads them, so that their number is that of the scores.
  const auto padded = scoring_of(
      Written()
          .input("z", "float32", {4, 6, 9})
          .input("labels", "int64", {4, 6})
          .call("more", "pad", {{"self", tensor("labels")}, {"pad", Shape{0, 1}}, {"value", -100.0}}, {4, 7},
                "int64")
          .call("behind", "slice", {{"self", tensor("more")}, {"dim", int64_t{1}}, {"start", int64_t{1}}},
                {4, 6}, "int64")
          .call("rows", "view", {{"self", tensor("z")}, {"size", Shape{-1, 9}}}, {24, 9})
          .call("flat", "view", {{"self", tensor("behind")}, {"size", Shape{-1}}}, {24}, "int64")
          .loss("rows", "flat")
          .handing_out({"loss", "z"}));
  REQUIRE(padded);
  CHECK(padded->labels == "labels");
  CHECK(padded->dimension == 2);
  CHECK(!padded->aligned);
}

TEST_CASE("scoring: what is no class is none") {
  // Numbers with a fraction, probabilities as targets, one score.
  CHECK(!scoring_of(Written()
                        .input("z", "float32", {4, 1})
                        .input("labels", "float32", {4, 1})
                        .call("loss", "binary_cross_entropy_with_logits",
                              {{"self", tensor("z")}, {"target", tensor("labels")}}, {})
                        .handing_out({"loss", "z"})));
  CHECK(!scoring_of(Written()
                        .input("z", "float32", {4, 3})
                        .input("labels", "float32", {4, 3})
                        .loss("z", "labels")
                        .handing_out({"loss", "z"})));
  const auto one = scoring_of(Written()
                                  .input("z", "float32", {4, 1})
                                  .input("labels", "int64", {4})
                                  .loss("z", "labels")
                                  .handing_out({"loss", "z"}));
  REQUIRE(one);
  CHECK(!one->dimension);
  // Scores that no cross entropy looks at: a loss that is one still counts labels, a part of one does not.
  const auto other = scoring_of(Written()
                                    .input("z", "float32", {4, 3})
                                    .input("labels", "int64", {4})
                                    .input("more", "float32", {4, 3})
                                    .loss("z", "labels")
                                    .handing_out({"loss", "more"}));
  REQUIRE(other);
  CHECK(!other->dimension);
  CHECK(other->is_loss);
  CHECK(!scoring_of(Written()
                        .input("z", "float32", {4, 3})
                        .input("labels", "int64", {4})
                        .loss("z", "labels")
                        .call("both", "mul", {{"self", tensor("loss")}, {"other", tensor("loss")}}, {})
                        .handing_out({"both"})));
}

TEST_CASE("scoring: of several cross entropies the one whose scores are handed out") {
  Written graph;
  graph.input("a", "float32", {4, 3})
      .input("b", "float32", {4, 7})
      .input("labels", "int64", {4})
      .input("other", "int64", {4});
  graph.call("first", "cross_entropy_loss", {{"self", tensor("a")}, {"target", tensor("labels")}}, {})
      .call("second", "cross_entropy_loss", {{"self", tensor("b")}, {"target", tensor("other")}}, {})
      .call("loss", "add", {{"self", tensor("first")}, {"other", tensor("second")}, {"alpha", 0.5}}, {});
  CHECK(scoring_of(graph.handing_out({"loss", "a"}))->classes == 3);
  const auto second = scoring_of(graph.handing_out({"loss", "b"}));
  CHECK(second->classes == 7);
  CHECK(second->labels == "other");
  CHECK(!second->is_loss);
}

TEST_CASE("scoring: sums") {
  const auto summed = [](int64_t reduction) {
    return Written()
        .input("z", "float32", {4, 3})
        .input("labels", "int64", {4})
        .loss("z", "labels", {{"reduction", reduction}})
        .handing_out({"loss", "z"});
  };
  CHECK(!loss_is_sum(summed(1)));
  CHECK(loss_is_sum(summed(2)));
  CHECK(scoring_of(summed(1))->is_mean);
  CHECK(!scoring_of(summed(2))->is_mean);
  CHECK(loss_is_sum(Written()
                        .input("z", "float32", {4, 3})
                        .call("loss", "sum", {{"self", tensor("z")}}, {})
                        .handing_out({"loss"})));
}

TEST_CASE("scoring: every model of the zoo says what its classes are, and texts are texts") {
  for (const ModelRow& row : model_rows()) {
    CAPTURE(row.name);
    const std::string name = row.name;
    const Graph graph = build_model(name, 2).graph;
    const auto scoring = scoring_of(graph);
    REQUIRE(scoring);
    REQUIRE(scoring->dimension);
    CHECK(scoring->classes ==
          graph.values.at(graph.outputs[1]).shape.at(static_cast<size_t>(*scoring->dimension)));
    CHECK(scoring->is_text == (name == "gpt" || name == "bert" || name == "gnmt"));
    CHECK(scoring->aligned == (name != "bert-span"));
  }
}

TEST_CASE("evaluation counts what a module called auxiliary_loss adds 0, and no other sum") {
  Written graph;
  graph.input("a", "float32", {4, 3}).input("labels", "int64", {4});
  graph.call("first", "cross_entropy_loss", {{"self", tensor("a")}, {"target", tensor("labels")}}, {})
      .call("second", "cross_entropy_loss", {{"self", tensor("a")}, {"target", tensor("labels")}}, {})
      .call("loss", "add", {{"self", tensor("first")}, {"other", tensor("second")}}, {});
  Graph two = graph.handing_out({"loss", "a"});
  CHECK(evaluation_graph(two).nodes.back().arguments == two.nodes.back().arguments);
  two.nodes.back().layer = "head.auxiliary_loss";
  CHECK(evaluation_graph(two).nodes.back().arguments.back() ==
        std::pair<std::string, Argument>{"alpha", 0.0});
}

}  // namespace
}  // namespace pipewright
