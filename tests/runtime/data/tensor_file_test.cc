#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

#include "models/safetensors/safetensors.h"
#include "tests/runtime/data/helpers.h"

namespace pipewright {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

std::string file_spec(const TemporaryFolder& folder, NamedTensors tensors) {
  const auto file = folder.path() / "own.safetensors";
  write_safetensors(file, std::move(tensors), {});
  return "tensors:file=" + file.string();
}

std::string file_error(const std::string& spec) {
  return message_of<InputError>([&] { open_dataset(spec, "train"); });
}

TEST_CASE("one's own tensors are fields, sample by sample, in their order") {
  const TemporaryFolder folder;
  const at::Tensor pixels = at::arange(24, at::kFloat).reshape({4, 2, 3});
  const std::string spec = file_spec(folder, {{"pixels", pixels},
                                              {"labels", at::tensor({0, 2, 1, 2}, at::kLong)},
                                              {"mask", at::ones({4}, at::kBool)}});
  const auto set = open_dataset(spec, "train");
  CHECK(set->size() == 4);
  CHECK(set->in_order());
  CHECK(open_dataset(spec + ",shuffle=no", "train")->in_order());
  CHECK(!open_dataset(spec + ",shuffle=yes", "train")->in_order());
  CHECK(file_error(spec + ",shuffle=true").find("shuffle: got 'true', expected yes|no") != std::string::npos);
  CHECK(set->classes() == 3);
  REQUIRE(set->fields().size() == 3);  // by name
  CHECK(set->fields()[0].name == "labels");
  CHECK(set->fields()[1].sample_type == TensorType{"bool", {}});
  CHECK(set->fields()[2].sample_type == TensorType{"float32", {2, 3}});
  for (const int64_t sample : {2, 0, 3}) {
    at::Tensor read = at::zeros({2, 3});
    set->read(sample, 2, {}, read.mutable_data_ptr());
    CHECK(read.equal(pixels[sample]));
  }
  CHECK(open_dataset(spec + ",samples=3", "evaluation")->size() == 3);
}

TEST_CASE("files that are no set of samples are refused") {
  const TemporaryFolder folder;
  CHECK(file_error("tensors").find("file: it is missing; expected file=FILE.safetensors") !=
        std::string::npos);
  CHECK(file_error(file_spec(folder, {{"a", at::zeros({})}})).find("tensor 'a' is a scalar") !=
        std::string::npos);
  const std::string uneven = file_error(file_spec(folder, {{"a", at::zeros({4, 2})}, {"b", at::zeros({3})}}));
  CHECK(uneven.find("has 3 samples, 'a' has 4") != std::string::npos);
  CHECK(file_error(file_spec(folder, {{"a", at::zeros({0, 2})}})).find("has 0 samples") != std::string::npos);
  CHECK(file_error(file_spec(folder, {{"a", at::zeros({4})}}) + ",samples=5").find("got 5, the file has 4") !=
        std::string::npos);
}

TEST_CASE("an exported program's input without a field is told how to bind one") {
  const TemporaryFolder folder;
  const std::string spec =
      file_spec(folder, {{"pixels", at::zeros({4, 6})}, {"labels", at::zeros({4}, at::kLong)}});
  Graph graph;
  graph.name = "mine.pt2:loss=cross_entropy";
  graph.inputs = {"x", "labels"};
  graph.outputs = {"loss"};
  graph.values["x"] = {"float32", {2, 6}};
  graph.values["labels"] = {"int64", {2}};
  graph.values["loss"] = {"float32", {}};
  const auto remedy = [&] {
    try {
      check_dataset_for_graph(*open_dataset(spec, "train"), graph, spec);
    } catch (const InputError& error) {
      return error.remedy();
    }
    return std::string();
  };
  CHECK(remedy() == "likely: --model mine.pt2:loss=cross_entropy,x=pixels");
  graph.name = "mine.pt2:loss=cross_entropy,input=x";  // bound to a field that is not there
  CHECK(remedy() == "likely: --model mine.pt2:loss=cross_entropy,input=pixels");
  graph.values["x"] = {"float32", {2, 7}};
  CHECK(remedy() ==
        "no field that is left is float32 (7) a sample: export the program with inputs like the data's, or "
        "give "
        "it data of your own, --data tensors:file=FILE.safetensors");
}

TEST_CASE("an exported program's field of another dtype or shape is told of the one that fits") {
  const TemporaryFolder folder;
  const std::string spec = file_spec(folder, {{"ids", at::zeros({4, 6}, at::kInt)},
                                              {"x", at::zeros({4, 6})},
                                              {"tokens", at::zeros({4, 6}, at::kLong)}});
  Graph graph;
  graph.name = "mine.pt2";
  graph.inputs = {"x"};
  graph.outputs = {"loss"};
  graph.values["loss"] = {"float32", {}};
  const auto refusal = [&](const TensorType& type) {
    graph.values["x"] = type;
    try {
      check_dataset_for_graph(*open_dataset(spec, "train"), graph, spec);
    } catch (const InputError& error) {
      return std::string(error.what()) + " | " + error.remedy();
    }
    return std::string();
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(refusal({"float32", {2, 6}}).empty());
  contains(refusal({"int64", {2, 6}}),
           "field 'x': got float32 (6), expected int64 (6) a sample | likely: --model mine.pt2:x=tokens");
  contains(refusal({"int16", {2, 6}}), "no field that is left is int16 (6) a sample");
  contains(refusal({"float32", {2, 7}}), "got samples of shape (6), expected (7) | no field that is left");
}

}  // namespace
}  // namespace pipewright
