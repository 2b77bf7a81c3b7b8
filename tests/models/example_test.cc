// The example of docs/models.md compiles and makes a model; what the document says about the zoo is so.
#include <catch2/catch.hpp>
#include <sstream>

#include "graph/json.h"
#include "models/zoo/registry.h"
#include "models/zoo/sequential.h"
#include "models/zoo/zoo.h"
#include "test_paths.h"

namespace pipewright {
namespace {

// clang-format off
// BEGIN EXAMPLE
Model build_tinynet(ModelOptions& options, int64_t batch_size) {
  // The pooling leaves one pixel of 4: the smallest image.
  const ImageOptions images = image_options(options, {.classes = 10, .channels = 1, .image = 28}, 4);
  const int64_t width = options.integer("width", 8, 1, 1024);

  ModelBuilder model(options.spec().text(), batch_size);
  Sequential features(model, "features", image_input(model, images));
  features.conv2d({.channels = width, .kernel = 3, .padding = 1}).batch_norm().relu();
  features.max_pool2d({.kernel = 4, .stride = 4});

  std::string x = features.value();
  {
    auto layer = model.layer("branch");
    x = model.add(x, model.relu(x));
  }
  {
    auto layer = model.layer("head");
    x = model.linear(model.flatten(x), {.features = images.classes});
  }
  return model.finish_classification(x);
}
// END EXAMPLE
// clang-format on

std::string document() { return read_file(std::string(PIPEWRIGHT_SOURCE_DIR) + "/docs/models.md"); }

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t i = static_cast<int64_t>(text.size()) - 3; i > 0; i -= 3)
    text.insert(static_cast<size_t>(i), ",");
  return text;
}

TEST_CASE("the example of docs/models.md is the function above, and makes a model") {
  const std::string source = read_file(std::string(PIPEWRIGHT_SOURCE_DIR) + "/tests/models/example_test.cc");
  const std::string begin = "// BEGIN EXAMPLE\n";
  const size_t first = source.find(begin) + begin.size();
  const std::string example = source.substr(first, source.find("// END EXAMPLE") - first);
  CHECK(document().find(example) != std::string::npos);

  ModelOptions options(parse_spec("tinynet:width=4", "model"));
  const Model model = build_tinynet(options, 16);
  options.finish();
  CHECK(parameter_count(model.graph) == (4 * 9 + 4) + (4 + 4) + (4 * 7 * 7 * 10 + 10));
  CHECK(model.graph.nodes.back().name == "loss.cross_entropy_loss");
}

TEST_CASE("docs/models.md lists every model with its options, inputs and parameter count") {
  const std::string text = document();
  for (const ModelRow& row : model_rows()) {
    const Model model = build_model(row.name, 2);
    std::ostringstream line;
    line << "| `" << row.name << "` | `" << row.options << "` | " << with_commas(parameter_count(model.graph))
         << " |";
    INFO(line.str());
    CHECK(text.find(line.str()) != std::string::npos);
  }
}

}  // namespace
}  // namespace pipewright
