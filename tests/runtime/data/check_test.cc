#include <catch2/catch.hpp>

#include "tests/runtime/data/helpers.h"

namespace pipewright {
namespace {

using testing::message_of;

void add_cross_entropy(Graph& graph, const std::string& scores, const std::string& labels) {
  graph.nodes.push_back({"loss",
                         "aten::cross_entropy_loss",
                         "",
                         {{"self", TensorArgument{scores}}, {"target", TensorArgument{labels}}},
                         {"loss"},
                         ""});
}

Graph image_model(std::vector<int64_t> images, int64_t scores) {
  Graph graph;
  graph.name = "convnet";
  graph.inputs = {"images", "labels"};
  graph.outputs = {"loss", "scores"};
  images.insert(images.begin(), 64);
  graph.values["images"] = {"float32", images};
  graph.values["labels"] = {"int64", {64}};
  graph.values["loss"] = {"float32", {}};
  graph.values["scores"] = {"float32", {64, scores}};
  add_cross_entropy(graph, "scores", "labels");
  return graph;
}

Graph text_model(int64_t tokens, int64_t vocabulary) {
  Graph graph;
  graph.name = "gpt";
  graph.inputs = {"tokens", "labels"};
  graph.outputs = {"loss", "scores"};
  graph.values["tokens"] = graph.values["labels"] = {"int64", {8, tokens}};
  graph.values["loss"] = {"float32", {}};
  graph.values["scores"] = {"float32", {8, tokens, vocabulary}};
  graph.values["rows"] = {"float32", {8 * tokens, vocabulary}};
  graph.values["row_labels"] = {"int64", {8 * tokens}};
  for (const auto& [rows, of] : {std::pair("rows", "scores"), std::pair("row_labels", "labels")})
    graph.nodes.push_back({rows, "aten::reshape", "", {{"self", TensorArgument{of}}}, {rows}, ""});
  add_cross_entropy(graph, "rows", "row_labels");
  return graph;
}

std::string fit_error(const std::string& spec, const Graph& graph) {
  const auto set = open_dataset(spec, "train");
  return message_of<InputError>([&] { check_dataset_for_graph(*set, graph, spec); });
}

TEST_CASE("a data set that fits the model passes") {
  const auto passes = [](const std::string& spec, const Graph& graph) {
    CHECK_NOTHROW(check_dataset_for_graph(*open_dataset(spec, "train"), graph, spec));
  };
  passes("synthetic-images", image_model({1, 28, 28}, 10));
  passes("synthetic-images", image_model({1, 28, 28}, 1000));
  passes("synthetic-images:image=32,channels=3,classes=100", image_model({3, 32, 32}, 100));
  passes("synthetic-text:tokens=16,vocabulary=50", text_model(16, 50));
  Graph without_labels = image_model({1, 28, 28}, 10);
  without_labels.inputs = {"images"};
  without_labels.outputs = {"loss"};
  without_labels.nodes.clear();
  passes("synthetic-images:classes=99", without_labels);
}

TEST_CASE("another shape: field, got, expected and the option to change") {
  const std::string message = fit_error("synthetic-images:seed=4", image_model({3, 32, 32}, 10));
  CHECK_THAT(message,
             Catch::Contains("field 'images': got samples of shape (1, 28, 28), expected (3, 32, 32)"));
  CHECK_THAT(message, Catch::Contains("--data synthetic-images:seed=4,image=32,channels=3"));
  CHECK_THAT(fit_error("synthetic-images:image=40", image_model({1, 32, 32}, 10)),
             Catch::Contains("--data synthetic-images:image=32;"));
  CHECK_THAT(fit_error("synthetic-text:vocabulary=50", text_model(32, 50)),
             Catch::Contains("got samples of shape (64), expected (32); likely: --data "
                             "synthetic-text:vocabulary=50,tokens=32"));
  // A shape that no option makes: only the model can change.
  CHECK_THAT(fit_error("synthetic-images", image_model({784}, 10)), Catch::Contains("made for other data"));
}

TEST_CASE("another field") {
  const std::string message = fit_error("synthetic-images", text_model(16, 50));
  CHECK_THAT(message, Catch::Contains("the model reads the field 'tokens', the data set has images, labels"));
  CHECK_THAT(message, Catch::Contains("--data synthetic-text"));
}

TEST_CASE("another dtype") {
  Graph graph = image_model({1, 28, 28}, 10);
  graph.values["images"].dtype = "float64";
  CHECK_THAT(fit_error("synthetic-images", graph),
             Catch::Contains("field 'images': got float32 (1, 28, 28), expected float64 (1, 28, 28)"));
}

TEST_CASE("labels that no cross entropy reads, and those that it ignores, need no scores") {
  Graph binary = image_model({1, 28, 28}, 1);
  binary.nodes[0].op = "aten::binary_cross_entropy_with_logits";
  CHECK_NOTHROW(check_dataset_for_graph(*open_dataset("synthetic-images:classes=20", "train"), binary,
                                        "synthetic-images:classes=20"));
  Graph ignoring = image_model({1, 28, 28}, 10);
  ignoring.nodes[0].arguments.emplace_back("ignore_index", int64_t{10});
  CHECK_NOTHROW(check_dataset_for_graph(*open_dataset("synthetic-images:classes=11", "train"), ignoring,
                                        "synthetic-images:classes=11"));
  CHECK_THAT(fit_error("synthetic-images:classes=12", ignoring),
             Catch::Contains("labels: got 12 classes, expected at most 10"));
}

TEST_CASE("more classes than scores") {
  const std::string message = fit_error("synthetic-images:classes=20", image_model({1, 28, 28}, 10));
  CHECK_THAT(message, Catch::Contains("labels: got 20 classes, expected at most 10"));
  CHECK_THAT(message,
             Catch::Contains("the model's option classes=20, or --data synthetic-images:classes=10"));
  CHECK_THAT(fit_error("synthetic-text", text_model(64, 50)),
             Catch::Contains("synthetic-text:vocabulary=50"));
}

}  // namespace
}  // namespace pipewright
