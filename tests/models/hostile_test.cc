// Programs that were made to do harm: sound files whose operators write files, take memory apart or trust
// their arguments. Each is refused when it is read, or ends in one line when it runs.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>

#include "graph/error.h"
#include "models/exported/declared_memory.h"
#include "models/initialise.h"
#include "models/load.h"
#include "models/run/allowed_operators.h"
#include "models/run/interpreter.h"
#include "models/run/operators.h"
#include "models/run/scalar_types.h"
#include "tests/models/hand_graph.h"
#include "tests/models/pt2_files.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using namespace testing;
using Catch::Matchers::Contains;

const std::string kHostileProgram = "models/model.json";

Json argument(const std::string& name, Json value) {
  return {{"name", name}, {"arg", std::move(value)}, {"kind", 1}};
}
Json tensor_of(const std::string& name, const std::string& value = "linear") {
  return argument(name, {{"as_tensor", {{"name", value}}}});
}
Json text_of(const std::string& name, const std::string& value) {
  return argument(name, {{"as_string", value}});
}
Json number_of(const std::string& name, int64_t value) { return argument(name, {{"as_int", value}}); }
Json numbers_of(const std::string& name, std::vector<int64_t> value) {
  return argument(name, {{"as_ints", value}});
}
Json truth_of(const std::string& name, bool value) { return argument(name, {{"as_bool", value}}); }

at::Tensor longs(const std::vector<int64_t>& numbers) { return at::tensor(numbers, at::kLong); }

/// The fixture no_loss_mse, whose second node (of the value `linear`, 4 x 8) calls something else.
std::filesystem::path with_call(const std::filesystem::path& folder, const std::string& target,
                                const std::vector<Json>& inputs) {
  return edited_json("no_loss_mse", folder, kHostileProgram, [&](Json& program) {
    Json& node = program["graph_module"]["graph"]["nodes"][1];
    node["target"] = "torch.ops." + target;
    node["inputs"] = inputs;
  });
}

/// What reading the program, and one forward, say: one line; "no error" if nothing.
std::string outcome(const std::filesystem::path& file, bool* loaded = nullptr) {
  try {
    const Model model = load_model(file.string() + ":loss=mse", 4);
    if (loaded != nullptr) *loaded = true;
    std::vector<size_t> nodes(model.graph.nodes.size());
    std::iota(nodes.begin(), nodes.end(), 0);
    const Segment segment(model.graph, nodes, model.graph.outputs);
    std::vector<at::Tensor> inputs, parameters, buffers;
    for (const auto& name : segment.inputs())
      inputs.push_back(at::ones(model.graph.values.at(name).shape,
                                at::TensorOptions(scalar_type_of(model.graph.values.at(name).dtype))));
    for (const auto& name : segment.parameters()) parameters.push_back(initial_parameter(model, name, 0));
    for (const auto& name : segment.buffers()) buffers.push_back(initial_buffer(model, name));
    segment.forward(inputs, parameters, buffers, {});
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "no error";
}

TEST_CASE("a program cannot read or write a file: aten::from_file") {
  const TemporaryFolder folder;
  const auto victim = folder.path() / "victim";
  write_file(victim, "the user's own words, thirty two");
  for (const auto& name : {victim, folder.path() / "new"}) {
    const auto file =
        with_call(folder.path(), "aten.from_file.default",
                  {text_of("filename", name.string()), truth_of("shared", true), number_of("size", 8)});
    CHECK_THAT(outcome(file), Contains("node 'silu_'") && Contains("aten::from_file") &&
                                  Contains("a graph may not call this operator: it reads and writes files"));
  }
  CHECK(read_file(victim) == "the user's own words, thirty two");
  CHECK_FALSE(std::filesystem::exists(folder.path() / "new"));
}

TEST_CASE("programs that reach beyond their tensors are refused by name") {
  const TemporaryFolder folder;
  const Json self = tensor_of("self");
  const std::vector<std::pair<std::string, std::vector<Json>>> calls = {
      {"aten._reshape_alias.default", {self, numbers_of("size", {1 << 20}), numbers_of("stride", {1})}},
      {"aten.as_strided_.default", {self, numbers_of("size", {1 << 20}), numbers_of("stride", {1})}},
      {"aten.set_.source_Tensor", {self, tensor_of("source", "p_layers_2_weight")}},
      {"aten.set_.source_Tensor_storage_offset",
       {self, tensor_of("source"), number_of("storage_offset", 0), numbers_of("size", {1 << 20})}},
      {"aten.resize_.default", {self, numbers_of("size", {1 << 20})}},
      {"aten.resize_as_.default", {self, tensor_of("the_template", "p_layers_0_weight")}},
      {"aten._resize_output_.default",
       {self, numbers_of("size", {9}), argument("device", {{"as_device", {{"type", "cpu"}}}})}},
      {"aten.unsafe_split.Tensor", {self, number_of("split_size", 2)}},
      {"aten.max_pool2d_with_indices_backward.default",
       {tensor_of("grad_output"), self, numbers_of("kernel_size", {2, 2}), numbers_of("stride", {2, 2}),
        numbers_of("padding", {0, 0}), numbers_of("dilation", {1, 1}), truth_of("ceil_mode", false),
        tensor_of("indices")}},
      {"aten._sparse_csr_tensor_unsafe.default",
       {tensor_of("crow_indices"), tensor_of("col_indices"), tensor_of("values"),
        numbers_of("size", {4, 8})}},
      {"aten.sparse_coo_tensor.indices_size",
       {tensor_of("indices"), tensor_of("values"), numbers_of("size", {4, 8})}},
      {"aten.to_sparse.default", {self}},
      {"aten.segment_reduce.default",
       {tensor_of("data"), text_of("reduce", "sum"), truth_of("unsafe", true)}},
      {"aten._index_put_impl_.default",
       {self, argument("indices", {{"as_tensors", Json::array({{{"name", "linear"}}})}}), tensor_of("values"),
        truth_of("accumulate", false), truth_of("unsafe", true)}},
      {"aten.add.out", {self, tensor_of("other"), tensor_of("out", "p_layers_2_weight")}},
      {"aten.lu_unpack.default", {tensor_of("LU_data"), tensor_of("LU_pivots")}},
      {"aten.linalg_ldl_solve.default", {tensor_of("LD"), tensor_of("pivots"), tensor_of("B")}},
      {"aten.slow_conv3d.default", {self, tensor_of("weight"), numbers_of("kernel_size", {1})}},
      {"aten.quantize_per_tensor.default",
       {self, argument("scale", {{"as_float", 1.0}}), number_of("zero_point", 0),
        argument("dtype", {{"as_scalar_type", 1}})}},
      {"aten.fbgemm_pack_quantized_matrix.default", {tensor_of("input")}},
      {"aten.mkldnn_linear.default", {self, tensor_of("weight")}},
      {"aten._nested_view_from_buffer.default",
       {self, tensor_of("nested_size"), tensor_of("nested_strides"), tensor_of("offsets")}},
      {"aten._cudnn_rnn_flatten_weight.default", {}},
      {"aten.rename_.default", {self, argument("names", {{"as_none", true}})}},
      {"c10d.barrier.default", {}},
      {"profiler._record_function_enter.default", {text_of("name", "x")}},
      {"quantized.linear.default", {}},
      {"prepacked.unpack_prepacked_sizes_conv2d.default", {}},
      {"_c10d_functional.all_reduce.default",
       {tensor_of("input"), text_of("reduce_op", "sum"), text_of("group_name", "x")}},
      {"inductor.resize_storage_bytes_.default", {tensor_of("variable"), number_of("new_size", 8)}},
      {"symm_mem.one_shot_all_reduce.default",
       {tensor_of("input"), text_of("reduce_op", "sum"), text_of("group_name", "x")}},
  };
  for (const auto& [target, inputs] : calls) {
    CAPTURE(target);
    const std::string name =
        target.substr(0, target.find('.')) + "::" +
        target.substr(target.find('.') + 1, target.find('.', target.find('.') + 1) - target.find('.') - 1);
    CHECK_THAT(
        outcome(with_call(folder.path(), target, inputs)),
        Contains("node 'silu_'") && Contains(name) &&
            (Contains("a graph may not call this operator: ") || Contains("this LibTorch has no operator")));
  }
}

TEST_CASE("a view of given strides lies within the memory of its tensor") {
  const TemporaryFolder folder;
  const auto view = [&](std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t offset) {
    bool loaded = false;
    const std::string said =
        outcome(with_call(folder.path(), "aten.as_strided.default",
                          {tensor_of("self"), numbers_of("size", sizes), numbers_of("stride", strides),
                           number_of("storage_offset", offset)}),
                &loaded);
    CHECK(loaded == (said == "no error"));
    return said;
  };
  CHECK(view({4, 8}, {8, 1}, 0) == "no error");
  CHECK(view({4, 8}, {1, 4}, 0) == "no error");
  const auto refused = Contains("node 'silu_' (layers.1, aten::as_strided): sizes, strides and offset reach");
  CHECK_THAT(view({4, 8}, {8, 1}, 1),
             refused && Contains("reach byte 132, beyond the 128 bytes that 'linear' has"));
  CHECK_THAT(view({4, 9}, {8, 1}, 0), refused);
  CHECK_THAT(view({4, 8}, {int64_t{1} << 50, 1}, 0), refused);
  CHECK_THAT(view({int64_t{1} << 50, 8}, {int64_t{1} << 50, 1}, 0), refused && Contains("nowhere"));
  CHECK_THAT(view({4, 8}, {-8, 1}, 31), refused && Contains("nowhere"));
  CHECK_THAT(view({4, 8}, {8, 1}, -4), refused && Contains("nowhere"));
  CHECK_THAT(view({-4, 8}, {8, 1}, 0), refused);
  CHECK_THAT(view({4, 8}, {8}, 0), refused);
}

TEST_CASE("a view of given strides is measured by the memory, not by an expanded view of it") {
  const TemporaryFolder folder;
  const auto view = [&](int64_t rows) {
    return outcome(edited_json("no_loss_mse", folder.path(), kHostileProgram, [&](Json& program) {
      Json& graph = program["graph_module"]["graph"];
      Json& nodes = graph["nodes"];
      // linear (4, 8) -> one of its rows -> a thousand times that -> as_strided.
      const auto insert = [&](size_t at, const std::string& name, const std::string& target,
                              const std::vector<Json>& inputs, const std::vector<int64_t>& shape) {
        Json made = nodes[1];
        made["name"] = name;
        made["target"] = "torch.ops." + target;
        made["inputs"] = inputs;
        made["outputs"] = Json::array({{{"as_tensor", {{"name", name}}}}});
        nodes.insert(nodes.begin() + static_cast<ptrdiff_t>(at), made);
        Json type = graph["tensor_values"]["linear"];
        type["sizes"] = Json::array();
        for (const int64_t extent : shape) type["sizes"].push_back({{"as_int", extent}});
        type["strides"] = type["sizes"];
        graph["tensor_values"][name] = type;
      };
      insert(1, "row", "aten.slice.Tensor",
             {tensor_of("self"), number_of("dim", 0), number_of("start", 0), number_of("end", 1)}, {1, 8});
      insert(2, "many", "aten.expand.default", {tensor_of("self", "row"), numbers_of("size", {1000, 8})},
             {1000, 8});
      Json& last = nodes[3];
      last["target"] = "torch.ops.aten.as_strided.default";
      last["inputs"] = {tensor_of("self", "many"), numbers_of("size", {4, 8}),
                        numbers_of("stride", {rows, 1}), number_of("storage_offset", 0)};
    }));
  };
  CHECK(view(8) == "no error");
  CHECK_THAT(view(9), Contains("reach byte 140, beyond the 128 bytes that 'many' has"));
}

TEST_CASE("what decompositions call without checks is called with them") {
  const TemporaryFolder folder;
  const Json self = tensor_of("self");
  const auto viewed = [&](const std::vector<int64_t>& size) {
    return outcome(with_call(folder.path(), "aten._unsafe_view.default", {self, numbers_of("size", size)}));
  };
  CHECK(viewed({4, 8}) == "no error");
  CHECK_THAT(viewed({1 << 20}), Contains("aten::view"));
  CHECK_THAT(
      outcome(with_call(folder.path(), "aten._unsafe_index.Tensor",
                        {self, argument("indices", {{"as_tensors", Json::array({{{"name", "linear"}}})}})})),
      Contains("aten::index"));
}

TEST_CASE("tensors larger than the memory are refused when the program is read") {
  const TemporaryFolder folder;
  for (const int64_t rows : {int64_t{1} << 38, int64_t{1} << 45}) {
    const std::string said =
        outcome(edited_json("no_loss_mse", folder.path(), kHostileProgram, [&](Json& program) {
          program["graph_module"]["graph"]["tensor_values"]["silu_"]["sizes"][0]["as_int"] = rows;
          program["graph_module"]["graph"]["tensor_values"]["linear"]["sizes"][0]["as_int"] = rows;
        }));
    CHECK_THAT(said, Contains("node 'linear' (layers.0, aten::linear): its tensors take ") &&
                         Contains("the largest is float32 (" + std::to_string(rows) + ", 8)") &&
                         Contains("of memory are free"));
  }
  // By hand, against a memory that is known; an expanded view takes what it is a view of.
  Graph graph = load_model(pt2_fixture("no_loss_mse") + ":loss=mse", 4).graph;
  CHECK_NOTHROW(check_declared_memory(graph, {1 << 20, "of memory are free"}));
  CHECK_THROWS_WITH(check_declared_memory(graph, {200, "of memory are free"}),
                    Contains("200 B of memory are free") && Contains("its tensors take "));
}

TEST_CASE("sizes, places and types that no tensor has end in one line") {
  const TemporaryFolder folder;
  const Json self = tensor_of("self");
  const int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  std::vector<std::pair<std::string, std::vector<Json>>> calls;
  for (const int64_t number : {least, most, int64_t{-1} << 40, int64_t{1} << 40, int64_t{-7}, int64_t{99}}) {
    calls.push_back({"aten.select.int", {self, number_of("dim", 0), number_of("index", number)}});
    calls.push_back({"aten.select.int", {self, number_of("dim", number), number_of("index", 0)}});
    calls.push_back(
        {"aten.zeros.default", {numbers_of("size", {number, number == 99 ? int64_t{1} << 50 : number})}});
    calls.push_back({"aten.expand.default", {self, numbers_of("size", {number})}});
    calls.push_back({"aten.view.default", {self, numbers_of("size", {number})}});
    calls.push_back({"aten.transpose.int", {self, number_of("dim0", number), number_of("dim1", 1)}});
    calls.push_back({"aten.unfold.default",
                     {self, number_of("dimension", 0), number_of("size", number), number_of("step", 1)}});
    calls.push_back({"aten.softmax.int", {self, number_of("dim", number)}});
    calls.push_back({"aten.topk.default", {self, number_of("k", number)}});
    calls.push_back({"aten.pixel_shuffle.default", {self, number_of("upscale_factor", number)}});
    calls.push_back({"aten.linalg_matrix_power.default", {self, number_of("n", number)}});
    calls.push_back({"aten.avg_pool1d.default", {self, numbers_of("kernel_size", {number})}});
    calls.push_back({"aten.conv1d.default",
                     {tensor_of("input"), tensor_of("weight"), argument("bias", {{"as_none", true}}),
                      numbers_of("stride", {1}), numbers_of("padding", {number})}});
    calls.push_back(
        {"aten.diagonal.default", {self, number_of("offset", number), number_of("dim1", number)}});
    calls.push_back({"aten.narrow.default",
                     {self, number_of("dim", 0), number_of("start", number), number_of("length", number)}});
  }
  calls.push_back({"aten.reflection_pad3d.default", {self, numbers_of("padding", {})}});
  calls.push_back(
      {"aten.div.Tensor_mode", {self, tensor_of("other"), text_of("rounding_mode", "/etc/passwd")}});
  calls.push_back({"aten.einsum.default",
                   {text_of("equation", "....->"),
                    argument("tensors", {{"as_tensors", Json::array({{{"name", "linear"}}})}})}});
  calls.push_back({"aten.einsum.default",
                   {text_of("equation", std::string(100000, 'a')),
                    argument("tensors", {{"as_tensors", Json::array({{{"name", "linear"}}})}})}});
  calls.push_back({"aten.view.dtype", {self, argument("dtype", {{"as_scalar_type", 10}})}});
  calls.push_back(
      {"aten.repeat.default", {self, numbers_of("repeats", {int64_t{1} << 30, int64_t{1} << 30})}});
  for (const auto& [target, inputs] : calls) {
    CAPTURE(target, Json(inputs).dump().substr(0, 300));
    const std::string said = outcome(with_call(folder.path(), target, inputs));
    CHECK(said.size() < 2100);
    CHECK_THAT(said, Contains("silu_") || Contains("linear_1") || Contains("loss") || Contains("no error"));
  }
}

TEST_CASE("operators that trust their arguments are given none that they would not survive") {
  const auto said = [](const Node& n, const Tensors& tensors) -> std::string {
    std::vector<std::string> inputs;
    for (const auto& [name, tensor] : tensors) inputs.push_back(name);
    try {
      const Segment segment(graph_of(inputs, {}, {n}, n.outputs), {0}, n.outputs);
      run(segment, tensors);
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      return error.what();
    }
    return "no error";
  };
  const int64_t far = int64_t{1} << 40;
  SECTION("ctc_loss: targets that are no classes, but only those that count") {
    Node node = testing::node("n", "aten::ctc_loss",
                              {{"log_probs", tensor("x")},
                               {"targets", tensor("y")},
                               {"input_lengths", std::vector<int64_t>{4}},
                               {"target_lengths", std::vector<int64_t>{2}}},
                              "IntList");
    const at::Tensor scores = at::randn({4, 1, 3}).log_softmax(2);
    for (const int64_t wrong : {far, -far, int64_t{3}, int64_t{-1}})
      CHECK_THAT(said(node, {{"x", scores}, {"y", longs({wrong, 1}).reshape({1, 2})}}),
                 Contains("target " + std::to_string(wrong) + " is not in 0..2"));
    CHECK(said(node, {{"x", scores}, {"y", longs({1, 2, far}).reshape({1, 3})}}) == "no error");
    CHECK_THAT(said(node, {{"x", scores}, {"y", longs({1})}}), Contains("target length 2 is not in 0..1"));
  }
  SECTION("embedding_bag: offsets beyond the indices") {
    Node node = testing::node("n", "aten::embedding_bag",
                              {{"weight", tensor("w")}, {"indices", tensor("x")}, {"offsets", tensor("y")}});
    node.outputs = {"n", "b", "c", "d"};
    const at::Tensor table = at::randn({5, 3}), places = longs({0, 1, 2});
    CHECK(said(node, {{"w", table}, {"x", places}, {"y", longs({0, 1, 1})}}) == "no error");
    for (const int64_t wrong : {far, int64_t{4}, int64_t{-1}})
      CHECK_THAT(said(node, {{"w", table}, {"x", places}, {"y", longs({0, wrong, 3})}}),
                 Contains("offset " + std::to_string(wrong) + " is not in 0..3"));
  }
  SECTION("scaled_dot_product_attention: fewer values than keys") {
    const Node node = testing::node("n", "aten::scaled_dot_product_attention",
                                    {{"query", tensor("q")}, {"key", tensor("x")}, {"value", tensor("y")}});
    CHECK(said(node, {{"q", at::randn({1, 2, 5, 8})},
                      {"x", at::randn({1, 2, 40, 8})},
                      {"y", at::randn({1, 2, 40, 8})}}) == "no error");
    CHECK_THAT(said(node, {{"q", at::randn({1, 2, 5, 8})},
                           {"x", at::randn({1, 2, 40, 8})},
                           {"y", at::randn({1, 2, 4, 8})}}),
               Contains("other lengths"));
    CHECK_THAT(said(node, {{"q", at::randn({1, 2, 5, 8})},
                           {"x", at::randn({1, 2, 40, 4})},
                           {"y", at::randn({1, 2, 40, 8})}}),
               Contains("other widths"));
  }
  SECTION("_weight_norm: factors for other rows") {
    const Node node = testing::node("n", "aten::_weight_norm",
                                    {{"v", tensor("x")}, {"g", tensor("y")}, {"dim", int64_t{0}}});
    CHECK(said(node, {{"x", at::randn({40, 3})}, {"y", at::randn({40, 1})}}) == "no error");
    CHECK_THAT(said(node, {{"x", at::randn({40, 3})}, {"y", at::randn({1})}}), Contains("g has 1 elements"));
  }
}

TEST_CASE("recurrent nets: sizes of states and weights are compared, for any that are wrong") {
  std::mt19937_64 random(11);
  const auto pick = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  int sound = 0, refused = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string op =
        std::vector<std::string>{"lstm", "gru", "rnn_tanh", "rnn_relu"}[static_cast<size_t>(pick(4))];
    const int64_t gates = op == "lstm"  ? 4
                          : op == "gru" ? 3
                                        : 1,
                  layers = 1 + pick(2), directions = 1 + pick(2);
    const bool biases = pick(2) == 0, batch_first = pick(2) == 0, projected = op == "lstm" && pick(3) == 0;
    const int64_t batch = 1 + pick(3), steps = 1 + pick(3), width = 1 + pick(3), cell = 2 + pick(3);
    const int64_t out = projected ? 1 : cell;
    Tensors tensors;
    std::vector<std::string> states, weights;
    const auto add = [&](std::vector<std::string>& names, const std::string& name,
                         std::vector<int64_t> sizes) {
      tensors[name] = at::randn(sizes);
      names.push_back(name);
    };
    tensors["x"] = at::randn(batch_first ? std::vector<int64_t>{batch, steps, width}
                                         : std::vector<int64_t>{steps, batch, width});
    add(states, "h", {layers * directions, batch, out});
    if (op == "lstm") add(states, "c", {layers * directions, batch, cell});
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t direction = 0; direction < directions; ++direction) {
        const std::string at = std::to_string(layer) + std::to_string(direction);
        add(weights, "w" + at, {gates * cell, layer == 0 ? width : directions * out});
        add(weights, "u" + at, {gates * cell, out});
        for (const char* bias : {"b", "d"})
          if (biases) add(weights, bias + at, {gates * cell});
        if (projected) add(weights, "p" + at, {out, cell});
      }
    }
    const bool spoil = pick(3) != 0;
    bool wrong = false;
    if (spoil) {
      auto victim = std::next(tensors.begin(), pick(static_cast<int64_t>(tensors.size())));
      if (victim->first == "x") continue;
      std::vector<int64_t> sizes = victim->second.sizes().vec();
      int64_t& extent = sizes[static_cast<size_t>(pick(static_cast<int64_t>(sizes.size())))];
      extent += extent > 1 && pick(2) == 0 ? -1 : 1;
      victim->second = at::randn(sizes);
      wrong = true;
    }
    Node node{"n", "aten::" + op, "input", {{"input", tensor("x")}}, {"n", "m"}, "layer"};
    node.arguments.push_back(
        {"hx", op == "lstm" ? Argument(TensorsArgument{states}) : Argument(tensor("h"))});
    node.arguments.push_back({"params", TensorsArgument{weights}});
    node.arguments.push_back({"has_biases", biases});
    node.arguments.push_back({"num_layers", pick(20) == 0 ? int64_t{1} << 32 : layers});
    wrong = wrong || std::get<int64_t>(node.arguments.back().second) != layers;
    node.arguments.push_back({"dropout", 0.0});
    node.arguments.push_back({"train", true});
    node.arguments.push_back({"bidirectional", directions == 2});
    node.arguments.push_back({"batch_first", batch_first});
    if (op == "lstm") node.outputs.push_back("k");
    std::vector<std::string> inputs;
    for (const auto& [name, tensor] : tensors) inputs.push_back(name);
    const Segment segment(graph_of(inputs, {}, {node}, node.outputs), {0}, node.outputs);
    CAPTURE(i, op, layers, directions, biases, projected);
    if (wrong) {
      CHECK_THROWS_AS(run(segment, tensors), RunError);
      ++refused;
    } else {
      CHECK(run(segment, tensors)[0].numel() == batch * steps * directions * out);
      ++sound;
    }
  }
  CHECK(sound > 30);
  CHECK(refused > 60);
}

TEST_CASE(
    "of LibTorch's operators, those that graphs may call take and change nothing but tensors and numbers") {
  int allowed = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (!found || !why_not_allowed(found->schema()).empty()) continue;
    ++allowed;
    CAPTURE(name.name, name.overload_name);
    CHECK(name.name.starts_with("aten::"));
    for (const char* never : {"unsafe", "from_file", "resize", "backward", "sparse", "nested"})
      CHECK(name.name.find(never) == std::string::npos);
    for (const c10::Argument& argument : found->schema().arguments()) {
      CHECK(argument.type()->str().find("Storage") == std::string::npos);
      CHECK(argument.type()->str().find("Stream") == std::string::npos);
      CHECK(argument.name() != "out");
      CHECK(argument.name() != "filename");
    }
  }
  CHECK(allowed > 1000);
}

TEST_CASE("what real models call, graphs may call") {
  // Of the exports of torchvision's, transformers' and timm's models that tests/models/pt2/RESULTS.md lists,
  // and of functions that models use besides.
  const std::vector<std::string> called = {
#include "tests/models/called_operators.inc"
  };
  for (const std::string& name : called) {
    const size_t dot = name.find('.');
    Node node{
        "n", "aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1), {}, {"n"},
        ""};
    CAPTURE(name);
    CHECK_NOTHROW(find_operator(node));
  }
}

}  // namespace
}  // namespace pipewright
