// SPECs of models: options and their errors.
#include "models/zoo/registry.h"

#include <catch2/catch.hpp>

#include "graph/document.h"

namespace pipewright {
namespace {

using Catch::Matchers::Contains;

std::string spec_error(const std::string& spec, int64_t batch_size = 2) {
  try {
    build_model(spec, batch_size);
  } catch (const InputError& error) {
    CHECK(error.code() == ExitCode::kBadInput);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return std::string(error.what()) + " | " + error.remedy();
  }
  return "no error";
}

TEST_CASE("an unknown model or option names the nearest") {
  CHECK_THAT(spec_error("vgg166"), Contains("unknown model 'vgg166'") && Contains("did you mean 'vgg16'?"));
  CHECK_THAT(spec_error("transformer-xl"), Contains("known: mlp, convnet"));
  CHECK_THAT(spec_error("vgg16:clases=10"), Contains("unknown option 'clases'") && Contains("'classes'"));
  CHECK_THAT(spec_error("gpt:image=32"), Contains("unknown option 'image'"));
}

TEST_CASE("malformed SPECs are refused") {
  for (const char* spec :
       {"", ":", "vgg16:", "vgg16:classes", "vgg16:classes=", "vgg16:=10", "vgg16:classes=10,",
        "vgg16:classes=10,classes=10", "vgg16: classes=10", "VGG16", "vgg16 "}) {
    INFO(spec);
    CHECK_THAT(spec_error(spec), !Contains("no error"));
  }
}

TEST_CASE("values out of range say the range") {
  for (const char* value : {"0", "-1", "1.5", "ten", "1e3", "99999999999999999999", "0x10", " 10"}) {
    INFO(value);
    CHECK_THAT(spec_error("mlp:width=" + std::string(value)), Contains("width") && Contains("1..1048576"));
  }
  for (const char* value : {"-0.1", "1", "nan", "inf", "0.1x"}) {
    INFO(value);
    CHECK_THAT(spec_error("gpt:dropout=" + std::string(value)), Contains("dropout") && Contains("0..0.99"));
  }
  CHECK_THAT(spec_error("gpt:width=10,heads=4"), Contains("multiple of heads=4"));
  CHECK_THAT(spec_error("mlp", 0), Contains("batch size: got 0, expected at least 1"));
}

TEST_CASE("the smallest image works, the next smaller one says so") {
  for (const auto& [name, smallest] : std::vector<std::pair<std::string, int64_t>>{
           {"alexnet", 63}, {"vgg11", 32}, {"vgg16", 32}, {"convnet", 8}, {"mlp", 1}, {"resnet18", 1}}) {
    const auto spec = [&name = name](int64_t image) { return name + ":image=" + std::to_string(image); };
    INFO(name);
    CHECK(spec_error(spec(smallest)) == "no error");
    if (smallest == 1) continue;
    CHECK_THAT(spec_error(spec(smallest - 1)), Contains("got " + std::to_string(smallest - 1)) &&
                                                   Contains("at least " + std::to_string(smallest)) &&
                                                   Contains("Next: image=" + std::to_string(smallest)));
  }
}

TEST_CASE("the small forms say which images they take") {
  for (const auto& [name, smallest, largest] : std::vector<std::tuple<std::string, int64_t, int64_t>>{
           {"resnet18", 25, 32}, {"resnet152", 25, 32}, {"mobilenet_v2", 25, 32}, {"vgg11", 16, 63}}) {
    const auto spec = [&name = name](int64_t image) {
      return name + ":small=yes,image=" + std::to_string(image);
    };
    INFO(name);
    CHECK(spec_error(spec(smallest)) == "no error");
    CHECK(spec_error(spec(largest)) == "no error");
    CHECK_THAT(spec_error(spec(smallest - 1)),
               Contains("at least " + std::to_string(smallest)) &&
                   Contains("image=" + std::to_string(smallest) + " or larger"));
    CHECK_THAT(spec_error(spec(largest + 1)),
               Contains("at most " + std::to_string(largest)) &&
                   Contains("image=" + std::to_string(largest) + " or smaller"));
  }
  CHECK_THAT(spec_error("vgg11:small=yes,hidden=64"), Contains("one linear layer and no hidden ones"));
  CHECK_THAT(spec_error("resnet18:small=1"), Contains("small") && Contains("yes|no"));
  CHECK_THAT(spec_error("resnext50_32x4d:small=yes"), Contains("unknown option 'small'"));
}

TEST_CASE("a row's option text is a SPEC of all options with their defaults") {
  for (const ModelRow& row : model_rows()) {
    INFO(row.name);
    Graph plain = build_model(row.name, 2).graph;
    Graph spelled = build_model(std::string(row.name) + ":" + row.options, 2).graph;
    CHECK(spelled.name == std::string(row.name) + ":" + row.options);
    plain.name = spelled.name;
    CHECK(document_text(plain) == document_text(spelled));
  }
}

}  // namespace
}  // namespace pipewright
