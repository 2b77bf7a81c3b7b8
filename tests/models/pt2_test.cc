// What the reader of exported programs takes, and what it says of the rest.
#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>

#include "graph/error.h"
#include "models/exported/exported_model.h"
#include "models/exported/pt2_archive.h"
#include "models/exported/pt2_symbols.h"
#include "models/initialise.h"
#include "models/load.h"
#include "models/run/interpreter.h"
#include "models/run/scalar_types.h"
#include "tests/models/pt2_files.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

const std::string kProgram = "models/model.json";
const std::string kWeights = "data/weights/model_weights_config.json";

/// What load_model() says of a SPEC, with the remedy.
std::string refusal(const std::string& spec, int64_t batch_size = 4) {
  try {
    const Model model = load_model(spec, batch_size);
    for (const auto& [name, stored] : model.stored) model.archive->read(stored);
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return std::string(error.what()) + " | " + error.remedy();
  }
  return "no error";
}

std::string refusal_after(const std::string& fixture, const std::string& record,
                          const std::function<void(Json&)>& edit) {
  const TemporaryFolder folder;
  return refusal(edited_json(fixture, folder.path(), record, edit).string());
}

Json& node(Json& program, const std::string& target) {
  for (Json& one : program["graph_module"]["graph"]["nodes"]) {
    if (one["target"].get<std::string>().starts_with(target)) return one;
  }
  throw std::runtime_error("no node " + target);
}

TEST_CASE("a file of another kind, whatever it is called, is named for what it is") {
  const TemporaryFolder folder;
  const auto says = [&](const std::string& name, const std::string& bytes) {
    write_file(folder / name, bytes);
    return refusal((folder / name).string());
  };
  const std::string torch_save = "PK\x03\x04..w/data.pkl..PK";
  for (const std::string name : {"w.pth", "w.pt", "w.ckpt", "w.bin", "w.pt2", "w"})
    CHECK_THAT(says(name, torch_save), Contains("/" + name +
                                                ": is a TorchScript file or a checkpoint of torch.save, "
                                                "not an exported program | Export again"));
  CHECK_THAT(says("w.pkl", "\x80\x02}q."), Contains("is a pickle, not an exported program"));
  CHECK_THAT(says("m.onnx", "\x08\x09"), Contains("is an ONNX file, not an exported program"));
  CHECK_THAT(says("m.h5", "\x89HDF\r\n\x1a\n"),
             Contains("is an HDF5 file, as Keras writes, not an exported program"));
  CHECK_THAT(says("w.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10)),
             Contains("weights without a program") && Contains("--initial-weights"));
  CHECK_THAT(says("m.pt2", "version https://git-lfs.github.com/spec/v1"),
             Contains("Git LFS") && Contains("git lfs pull"));
  CHECK_THAT(says("m.txt", "x"), Contains("m.txt: is no exported program"));
  CHECK_THAT(refusal(folder.path().string()), Contains("is a folder, not an exported program"));
  CHECK_THAT(refusal((folder / "none.pth").string()), Contains("none.pth"));
  CHECK_THAT(refusal("convnet.pth"), Contains("convnet.pth") && !Contains("unknown model"));
  CHECK_THAT(refusal("convnett"), Contains("unknown model 'convnett'; did you mean 'convnet'"));
}

TEST_CASE("a program becomes a graph with its names, layers and weights") {
  const Model model = load_model(pt2_fixture("residual"), 4);
  CHECK(model.graph.name == pt2_fixture("residual"));
  CHECK(model.graph.inputs == std::vector<std::string>{"images", "labels"});
  CHECK(model.graph.values.at("images") == TensorType{"float32", {4, 1, 8, 8}});
  CHECK(model.graph.outputs == std::vector<std::string>{"cross_entropy_loss", "linear"});
  CHECK(model.fixed_batch);
  const Node& stem = model.graph.nodes[0];
  CHECK(stem.op == "aten::conv2d");
  CHECK(stem.layer == "stem");
  CHECK(model.graph.parameters[0].name == "stem.weight");
  CHECK(model.graph.parameters[0].trainable);
  CHECK(initial_parameter(model, "stem.weight", 0).sizes() == at::IntArrayRef({4, 1, 3, 3}));
  CHECK(initial_buffer(model, "bn1.num_batches_tracked").scalar_type() == at::kLong);
  CHECK(initial_parameter(model, "stem.weight", 0).abs().sum().item<float>() > 0);
}

TEST_CASE("an open batch takes any number of samples, a fixed one its own") {
  for (const int64_t batch : {2, 4, 7})
    CHECK(load_model(pt2_fixture("open_batch"), batch).graph.values.at("features").shape[0] == batch);
  CHECK_FALSE(load_model(pt2_fixture("open_batch"), 4).fixed_batch);
  CHECK_THAT(refusal(pt2_fixture("open_batch"), 1),
             Contains("exported for minibatches of at least 2 samples, got 1 | Give --batch-size 2 or more"));
  CHECK_THAT(refusal(pt2_fixture("residual"), 8),
             Contains("input \"images\" was exported for minibatches of 4 samples, got 8") &&
                 Contains("Give --batch-size 4") && Contains("--dynamic-batch"));
}

TEST_CASE("another number of samples follows the program's symbolic sizes, in types and arguments") {
  const Model model = load_model(pt2_fixture(GENERATE("open_batch", "batch_elsewhere", "permuted")), 4);
  for (const int64_t samples : {1, 2, 3, 5, 8}) {
    const Graph graph = with_batch_size(model, samples);
    std::vector<size_t> nodes(graph.nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) nodes[i] = i;
    std::vector<std::string> made;  // every value, so that each is compared with its type
    for (const Node& node : graph.nodes) made.insert(made.end(), node.outputs.begin(), node.outputs.end());
    const Segment segment(graph, nodes, made);
    std::vector<at::Tensor> inputs, parameters, buffers;
    for (const auto& name : segment.buffers()) buffers.push_back(initial_buffer(model, name));
    for (const auto& name : segment.inputs()) {
      const TensorType& type = graph.values.at(name);
      CHECK(type.shape[0] == samples);
      inputs.push_back(at::ones(type.shape, at::TensorOptions(scalar_type_of(type.dtype))));
    }
    for (const auto& name : segment.parameters()) parameters.push_back(initial_parameter(model, name, 0));
    const auto values = segment.forward(inputs, parameters, buffers, {});
    for (size_t i = 0; i < made.size(); ++i)
      CHECK(values[i].sizes() == at::IntArrayRef(graph.values.at(made[i]).shape));
  }
  CHECK_THROWS_WITH(with_batch_size(load_model(pt2_fixture("residual"), 4), 3),
                    Contains("exported for minibatches of 4"));
}

TEST_CASE("parts without gradient or autocast are nodes that say so") {
  const Graph graph = load_model(pt2_fixture("modes"), 4).graph;
  int without_gradient = 0, without_autocast = 0;
  for (const Node& one : graph.nodes) {
    without_gradient += one.gradient ? 0 : 1;
    without_autocast += one.autocast == "off" ? 1 : 0;
  }
  CHECK(without_gradient >= 4);
  CHECK(without_autocast >= 3);
}

TEST_CASE("nodes under autocast to a dtype say which, and what they make is what it computes") {
  const Graph graph = load_model(pt2_fixture("autocast"), 4).graph;
  std::map<std::string, std::set<std::string>> autocasts;  // by operator
  for (const Node& one : graph.nodes) autocasts[one.op].insert(one.autocast);
  CHECK(autocasts["aten::linear"] == std::set<std::string>{"", "bfloat16"});
  CHECK(autocasts["aten::matmul"] == std::set<std::string>{"off"});
  CHECK(autocasts["aten::gelu"] == std::set<std::string>{"bfloat16"});
  CHECK(autocasts["aten::tanh"] ==
        std::set<std::string>{""});  // under autocast of a device that it is not on
  for (const Node& one : graph.nodes) {
    if (one.op == "aten::linear")
      CHECK(graph.values.at(one.outputs[0]).dtype == (one.autocast.empty() ? "float32" : "bfloat16"));
  }
}

TEST_CASE("a program without a loss is given one by the SPEC") {
  const std::string file = pt2_fixture("no_loss");
  CHECK_THAT(refusal(file), Contains("expected the loss, a floating-point scalar") &&
                                Contains("--model " + file + ":loss=cross_entropy"));
  const Graph graph = load_model(file + ":loss=cross_entropy,labels=classes,features=pixels", 4).graph;
  CHECK(graph.inputs == std::vector<std::string>{"pixels", "classes"});
  CHECK(graph.nodes.back().op == "aten::cross_entropy_loss");
  CHECK(graph.outputs[0] == graph.nodes.back().name);
  CHECK_THAT(refusal(file + ":loss=mse,output=1"), Contains("output") && Contains("0..0"));
  CHECK_THAT(refusal(file + ":loss=hinge"), Contains("cross_entropy"));
  CHECK_THAT(refusal(file + ":loss=mse,feature=x"),
             Contains("unknown option 'feature'") && Contains("'features'"));
  CHECK_THAT(refusal(pt2_fixture("residual") + ":loss=cross_entropy"), Contains("output=N"));
}

TEST_CASE("output=N counts all that the module returns, and a loss of one element is a scalar") {
  const std::string file = pt2_fixture("returns");  // None, 3, {"all": [scores, loss (1)]}
  const Graph graph = load_model(file + ":output=3", 4).graph;
  CHECK(graph.values.at(graph.outputs[0]).shape.empty());
  CHECK(graph.nodes.back().op == "aten::reshape");
  CHECK(graph.outputs.back() == "linear_1");  // the scores, found through it
  CHECK(load_model(file + ":output=2,loss=mse", 4).graph.nodes.back().op == "aten::mse_loss");
  CHECK_THAT(refusal(file), Contains("output 2, 'linear_1', is float32 (4, 5); expected the loss"));
  CHECK_THAT(refusal(file + ":output=1"),
             Contains("output 1 is no tensor that the program computes; it returns 0 no tensor, 1 no tensor, "
                      "2 float32 (4, 5), 3 float32 (1)"));
  CHECK_THAT(refusal(file + ":output=4"), Contains("0..3"));
}

TEST_CASE("a frozen batch norm stays frozen, and a buffer that is not saved begins where it was") {
  const Model model = load_model(pt2_fixture("returns") + ":output=3", 4);
  const auto norm = std::find_if(model.graph.nodes.begin(), model.graph.nodes.end(),
                                 [](const Node& one) { return one.op == "aten::batch_norm"; });
  REQUIRE(norm != model.graph.nodes.end());
  CHECK(std::count(norm->arguments.begin(), norm->arguments.end(),
                   std::pair<std::string, Argument>{"training", false}) == 1);
  CHECK(initial_buffer(model, "seen").item<float>() == 0);
  // A backward that needs the buffer as it was has a copy: the next forward writes it.
  const auto product = std::find_if(model.graph.nodes.begin(), model.graph.nodes.end(),
                                    [](const Node& one) { return one.op == "aten::mul"; });
  CHECK(product->reads().back() == "clone_add_");
}

TEST_CASE("what writes its result into a tensor is the plain operator and a copy") {
  const Graph graph = load_model(pt2_fixture("spectral"), 4).graph;
  int copies = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    CHECK(graph.nodes[i].overload.find("out") == std::string::npos);
    if (graph.nodes[i].op != "aten::copy_") continue;
    ++copies;
    CHECK_FALSE(graph.nodes[i].gradient);
    CHECK(graph.nodes[i - 1].op == "aten::div");
    CHECK(graph.nodes[i].reads().back() == graph.nodes[i - 1].outputs[0]);
  }
  CHECK(copies == 4);
  // Another shape or dtype than that of the result: PyTorch would resize it, or convert.
  for (const auto& [key, value] : {std::pair<std::string, Json>{"sizes", {{{"as_int", 5}}}}, {"dtype", 8}}) {
    const std::function<void(Json&)> change = [&](Json& graph) {
      for (Json& one : graph["nodes"]) {
        for (Json& input : one["inputs"])
          if (input["arg"].contains("as_graph")) change(input["arg"]["as_graph"]["graph"]);
        if (one["target"] == "torch.ops.aten.div.out")
          graph["tensor_values"][one["outputs"][0]["as_tensor"]["name"].get<std::string>()][key] = value;
      }
    };
    CHECK_THAT(
        refusal_after("spectral", kProgram, [&](Json& program) { change(program["graph_module"]["graph"]); }),
        Contains("a graph may not call this operator: it writes into its argument 'out'"));
  }
}

TEST_CASE("inputs are bound to fields by their names or by their positions") {
  const auto inputs = [](const std::string& options) {
    return load_model(pt2_fixture("several_inputs") + options, 4).graph.inputs;
  };
  using Names = std::vector<std::string>;
  CHECK(inputs("") == Names{"images", "tokens", "mask", "labels"});
  CHECK(inputs(":images=pixels,3=classes") == Names{"pixels", "tokens", "mask", "classes"});
  CHECK(inputs(":0=pixels,1=words,2=kept,3=classes") == Names{"pixels", "words", "kept", "classes"});
  CHECK(inputs(":images=mask,mask=images") == Names{"mask", "tokens", "images", "labels"});  // change places
  CHECK(inputs(":0=images") == Names{"images", "tokens", "mask", "labels"});
  const std::string file = pt2_fixture("several_inputs");
  CHECK_THAT(refusal(file + ":4=x"), Contains("unknown option '4'"));
  CHECK_THAT(refusal(file + ":0=x,images=y"), Contains("is the input 'images', which has a field already"));
  CHECK_THAT(refusal(file + ":0=labels"), Contains("'labels' is the name of another tensor"));
  CHECK_THAT(refusal(file + ":0=x,1=x"), Contains("'x' is the name of another tensor"));
}

TEST_CASE(
    "a model knows what its module's state_dict has: every name of a tied tensor, what is not read, not "
    "what is not saved") {
  const Model tied = load_model(pt2_fixture("tied_embedding"), 4);
  CHECK(state_dict_of(tied).at("embedding.weight") == "embedding.weight");
  CHECK(state_dict_of(tied).at("head.weight") == "embedding.weight");
  const Model modes = load_model(pt2_fixture("modes"), 4);
  CHECK(state_dict_of(modes).count("mean") == 1);
  CHECK(state_dict_of(modes).count("scale") == 0);  // persistent=False
  CHECK(initial_buffer(modes, "scale").numel() == 8);
}

TEST_CASE("files that are no exported programs say what they are") {
  const TemporaryFolder folder;
  CHECK_THAT(refusal((folder.path() / "none.pt2").string()), Contains("none.pt2"));
  const auto text = folder.path() / "text.pt2";
  write_file(text, "This is no archive.");
  CHECK_THAT(refusal(text.string()), Contains("cannot be read as a zip archive"));
  const auto with = [&](const std::function<void(Records&)>& edit) {
    return refusal(edited("no_loss_mse", folder.path(), edit).string() + ":loss=mse");
  };
  CHECK(with([](Records&) {}) == "no error");
  CHECK_THAT(with([](Records& r) {
               r = {{"serialized_exported_program.json", "{}"}};
             }),
             Contains("the layout of PyTorch 2.8 and earlier") && Contains("Export again"));
  CHECK_THAT(with([](Records& r) { r = {{"data.pkl", "x"}}; }), Contains("TorchScript"));
  CHECK_THAT(with([](Records& r) { r.erase("archive_format"); }), Contains("archive_format"));
  CHECK_THAT(with([](Records& r) { r["archive_version"] = "1"; }),
             Contains("archive_version: got \"1\", expected \"0\""));
  CHECK_THAT(with([](Records& r) { r["models/other.json"] = "{}"; }), Contains("several programs"));
  CHECK_THAT(with([](Records& r) { r.erase(kProgram); }), Contains("models/NAME.json"));
  CHECK_THAT(with([](Records& r) { r.erase(kWeights); }), Contains("has no record '" + kWeights + "'"));
  CHECK_THAT(with([](Records& r) { r.erase("data/weights/weight_1"); }),
             Contains("has no record 'data/weights/weight_1'"));
  CHECK_THAT(with([](Records& r) { r["data/weights/weight_1"].pop_back(); }),
             Contains("reach beyond") && Contains("weight_1"));
}

TEST_CASE("weights that are pickles, lie elsewhere or do not fit are refused") {
  const auto with = [](const std::function<void(Json&)>& edit) {
    return refusal_after("residual", kWeights, [&](Json& json) { edit(json["config"]["stem.weight"]); });
  };
  CHECK_THAT(with([](Json& w) { w["use_pickle"] = true; }),
             Contains("stem.weight") && Contains("never opened"));
  for (const char* path : {"../../byteorder", "/etc/passwd", "..", "", "a\\b"})
    CHECK_THAT(with([&](Json& w) { w["path_name"] = path; }), Contains("expected a plain name"));
  CHECK_THAT(with([](Json& w) { w["tensor_meta"]["sizes"][0]["as_int"] = 5; }), Contains("reach beyond"));
  CHECK_THAT(with([](Json& w) { w["tensor_meta"]["storage_offset"]["as_int"] = 1; }),
             Contains("reach beyond"));
  CHECK_THAT(with([](Json& w) { w["tensor_meta"]["sizes"][0]["as_int"] = int64_t{1} << 60; }),
             Contains("is not in 0.."));
  CHECK_THAT(with([](Json& w) {
               w["tensor_meta"]["sizes"][0]["as_int"] = 1000000;
               w["tensor_meta"]["strides"][0]["as_int"] = 0;
             }),
             Contains("more elements than record"));
  CHECK_THAT(with([](Json& w) { w["tensor_meta"]["dtype"] = 28; }), Contains("uint16 are not supported"));
  CHECK_THAT(with([](Json& w) { w["tensor_meta"]["layout"] = 1; }), Contains("strided"));
  CHECK_THAT(refusal_after("residual", kWeights, [](Json& j) { j["config"].erase("stem.weight"); }),
             Contains("the program reads \"stem.weight\", which the archive does not store"));
}

TEST_CASE("programs that cannot run say which node and why") {
  const auto with = [](const std::function<void(Json&)>& edit) {
    return refusal_after("residual", kProgram, edit);
  };
  CHECK_THAT(with([](Json& p) { p["schema_version"]["major"] = 9; }),
             Contains("got schema version 9, expected 8"));
  CHECK_THAT(with([](Json& p) { p["verifiers"] = {"ATEN"}; }),
             Contains("made for inference") && Contains("without run_decompositions()"));
  CHECK_THAT(
      with([](Json& p) { node(p, "torch.ops.aten.conv2d")["target"] = "torch.ops.higher_order.cond"; }),
      Contains("node \"conv2d\" (stem, torch.ops.higher_order.cond)") && Contains("control flow"));
  CHECK_THAT(
      with([](Json& p) { node(p, "torch.ops.aten.conv2d")["target"] = "torch.ops.mine.blur.default"; }),
      Contains("node 'conv2d' (stem, mine::blur)") && Contains("has no operator 'mine::blur'") &&
          Contains("Operators of other libraries"));
  CHECK_THAT(with([](Json& p) { node(p, "torch.ops.aten.conv2d")["target"] = "my_module.blur"; }),
             Contains("is a function of Python"));
  CHECK_THAT(with([](Json& p) {
               node(p, "torch.ops.aten.linear")["inputs"][0]["arg"] = {{"as_complex", 1}};
             }),
             Contains("\"as_complex\", which is not supported"));
  CHECK_THAT(with([](Json& p) {
               node(p, "torch.ops.aten.linear")["outputs"][0] = {{"as_sym_float", 1}};
             }),
             Contains("which nothing before it makes"));
  CHECK_THAT(with([](Json& p) { p["graph_module"]["graph"]["tensor_values"]["conv2d"]["dtype"] = 11; }),
             Contains("complex128 are not supported"));
  CHECK_THAT(with([](Json& p) {
               node(p, "torch.ops.aten.relu_")["inputs"][0]["arg"]["as_tensor"]["name"] = "p_stem_weight";
             }),
             Contains("writes into parameter 'stem.weight'") && Contains("Weights change by updates only"));
  CHECK_THAT(with([](Json& p) {
               p["graph_module"]["signature"]["output_specs"][0] = {{"buffer_mutation", 1}};
             }),
             Contains("made for inference"));
}

TEST_CASE("sizes are computed as Python computes them") {
  Pt2Symbols symbols;
  symbols.bind("s77", 6);
  const auto value = [&](const std::string& text) { return symbols.evaluate(text, "x"); };
  const std::string s = "Symbol('s77', positive=True, integer=True)";
  CHECK(value(s) == 6);
  CHECK(value("Add(Mul(Integer(4), " + s + "), Integer(2))") == 26);
  CHECK(value("Add(Integer(2), Mul(Integer(-3), Add(" + s + ", Integer(-1))))") == -13);
  CHECK(value("FloorDiv(Pow(" + s + ", Integer(2)), Integer(5))") == 7);
  CHECK(value("FloorDiv(Integer(-7), Integer(2))") == -4);
  CHECK(value("Mod(Integer(-7), Integer(4))") == 1);
  CHECK(value("Max(Integer(1), FloorDiv(" + s + ", Integer(4)), CeilDiv(" + s + ", Integer(4)))") == 2);
  CHECK(value("Pow(Integer(-1), Integer(9223372036854775807))") == -1);
  CHECK_THROWS_WITH(value("Symbol('s78')"), Contains("which no size of an input determines"));
  CHECK_THROWS_WITH(value("Add(Symbol('u0', integer=True), Integer(1))"), Contains("known at run time only"));
  CHECK_THROWS_WITH(value("Add(Integer(9223372036854775807), Integer(1))"), EndsWith("is more than 63 bits"));
  CHECK_THROWS_WITH(value("Pow(Integer(3), Integer(9223372036854775807))"), EndsWith("is more than 63 bits"));
  CHECK_THROWS_WITH(value("FloorDiv(" + s + ", Integer(0))"), EndsWith("divides by zero"));
  for (const std::string& text : std::vector<std::string>{
           std::string(), std::string("s77"), s + " ", "Integer(1", "Integer(x)", "Integer(1.5)",
           "Sin(" + s + ")", "Pow(" + s + ", Integer(-1))", "Mod(Integer(1), Integer(2), Integer(3))",
           "Add(Integer(1),Integer(2))", "Add()"})
    CHECK_THROWS_AS(value(text), InputError);
  std::string deep = "Integer(1)";
  for (int i = 0; i < 100; ++i) deep = "Add(Integer(1), " + deep + ")";
  CHECK_THROWS_WITH(value(deep), Contains("nested"));
}

}  // namespace
}  // namespace pipewright
