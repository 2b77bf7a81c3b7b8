// Damaged and made-up exported programs: read whole and run, or refused in one line, in memory that the
// file's size bounds. PIPEWRIGHT_MUTATIONS sets how many, PIPEWRIGHT_MUTATION_SEED which (several processes
// share the work so); best in a build with `cmake --preset asan`, and with TMPDIR on a file system in memory.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>

#include "graph/error.h"
#include "models/exported/pt2_archive.h"
#include "models/initialise.h"
#include "models/load.h"
#include "models/run/scalar_types.h"
#include "tests/models/hand_graph.h"
#include "tests/models/pt2_files.h"
#include "tests/support/counted_memory.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using namespace testing;

// Of what operator new gives, besides the tensors themselves.
constexpr int64_t kFactor = 16;
constexpr int64_t kFixed = 1 << 20;

size_t below(std::mt19937_64& random, size_t end) { return random() % end; }

std::string damaged(std::string bytes, std::mt19937_64& random) {
  static const std::vector<std::string> strange = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   "\"",
                                                   ",",
                                                   ":",
                                                   "-1",
                                                   "0",
                                                   "1e9",
                                                   "18446744073709551615",
                                                   "9223372036854775807",
                                                   "null",
                                                   "true",
                                                   "\"as_none\"",
                                                   "\"as_int\"",
                                                   "\"as_expr\"",
                                                   "\"as_graph\"",
                                                   "\"s0//0\"",
                                                   "\"..\"",
                                                   "\xff",
                                                   "PK\x05\x06",
                                                   "{}"};
  for (size_t i = 1 + below(random, 4); i > 0; --i) {
    if (bytes.empty()) return bytes;
    const size_t at = below(random, bytes.size());
    switch (below(random, 6)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, strange[below(random, strange.size())]);
        break;
      case 3:
        bytes.erase(at, 1 + below(random, 40));
        break;
      case 4:  // a number
        for (size_t j = at; j < bytes.size() && j < at + 2000; ++j) {
          if (std::isdigit(static_cast<unsigned char>(bytes[j])) == 0) continue;
          bytes.replace(j, 1, strange[7 + below(random, 5)]);
          break;
        }
        break;
      default: {  // a piece of it, elsewhere
        const size_t from = below(random, bytes.size());
        bytes.insert(at, bytes.substr(from, 1 + below(random, 200)));
      }
    }
  }
  return bytes;
}

// ---- programs that are sound JSON and say something else ----

Json& pick(Json& list, std::mt19937_64& random) { return list[below(random, list.size())]; }

const std::vector<int64_t>& strange_integers() {
  // None between what is cheap and what no memory holds.
  static const std::vector<int64_t> integers = {0,
                                                1,
                                                -1,
                                                2,
                                                3,
                                                5,
                                                7,
                                                8,
                                                31,
                                                -100,
                                                int64_t{1} << 40,
                                                int64_t{-1} << 40,
                                                int64_t{1} << 53,
                                                std::numeric_limits<int64_t>::max(),
                                                std::numeric_limits<int64_t>::min()};
  return integers;
}

const std::vector<std::string>& operators() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {
#include "tests/models/called_operators.inc"
    };
    for (std::string& name : all)
      name = "aten." + name + (name.find('.') == std::string::npos ? ".default" : "");
    for (const char* more :
         {"aten.from_file.default", "aten.set_.source_Tensor", "aten.resize_.default",
          "aten._reshape_alias.default", "aten.add.out", "aten._unsafe_view.default",
          "aten.segment_reduce.default", "prims.add.default", "nothing.at_all.default", "aten.linear", ""})
      all.emplace_back(more);
    return all;
  }();
  return names;
}

// Every number that is a size, a place or a count: {"as_int": N}, lists of them, literals of lists.
void change_integers(Json& json, std::mt19937_64& random, int64_t& left) {
  if (json.is_number_integer()) {
    if (left-- == 0) json = strange_integers()[below(random, strange_integers().size())];
  } else if (json.is_structured()) {
    for (Json& one : json) change_integers(one, random, left);
  }
}

int64_t count_integers(const Json& json) {
  if (json.is_number_integer()) return 1;
  int64_t count = 0;
  if (json.is_structured()) {
    for (const Json& one : json) count += count_integers(one);
  }
  return count;
}

// Every name of a tensor, at its place: {"name": ...} under as_tensor or in as_tensors.
void collect_names(Json& json, std::vector<Json*>& names) {
  if (json.is_object() && json.contains("name") && json["name"].is_string() && json.size() == 1)
    names.push_back(&json["name"]);
  if (json.is_structured()) {
    for (Json& one : json) collect_names(one, names);
  }
}

void change_meaning(Json& program, std::mt19937_64& random) {
  Json& graph = program["graph_module"]["graph"];
  Json& nodes = graph["nodes"];
  if (nodes.empty()) return;
  Json& node = pick(nodes, random);
  switch (below(random, 11)) {
    case 0:  // another operator
      node["target"] = "torch.ops." + operators()[below(random, operators().size())];
      break;
    case 1:  // of another node
      std::swap(node["target"], pick(nodes, random)["target"]);
      break;
    case 2:  // with its arguments
      std::swap(node["inputs"], pick(nodes, random)["inputs"]);
      break;
    case 3: {  // an integer out of range
      const int64_t count = count_integers(node["inputs"]);
      int64_t which = count == 0 ? 0 : static_cast<int64_t>(below(random, static_cast<size_t>(count)));
      change_integers(node["inputs"], random, which);
      break;
    }
    case 4: {  // a size, stride, dtype or layout
      auto type = graph["tensor_values"].begin();
      std::advance(type, below(random, graph["tensor_values"].size()));
      int64_t which = static_cast<int64_t>(below(random, 12));
      change_integers(*type, random, which);
      break;
    }
    case 5: {  // a name of something else, or of nothing
      std::vector<Json*> names;
      collect_names(graph, names);
      if (names.empty()) break;
      const std::string other =
          below(random, 4) == 0 ? "nothing" : names[below(random, names.size())]->get<std::string>();
      *names[below(random, names.size())] = other;
      break;
    }
    case 6:
      nodes.push_back(node);
      break;
    case 7:
      std::swap(node, pick(nodes, random));
      break;
    case 8:
      nodes.erase(below(random, nodes.size()));
      break;
    case 9:  // an argument less, or twice
      if (node["inputs"].empty()) break;
      if (below(random, 2) == 0) {
        node["inputs"].erase(below(random, node["inputs"].size()));
      } else {
        node["inputs"].push_back(pick(node["inputs"], random));
      }
      break;
    default: {  // an argument of another kind
      if (node["inputs"].empty()) break;
      static const std::vector<Json> kinds = {{{"as_none", true}},
                                              {{"as_int", 3}},
                                              {{"as_ints", {2, 2}}},
                                              {{"as_float", "NaN"}},
                                              {{"as_bool", true}},
                                              {{"as_string", "/etc/passwd"}},
                                              {{"as_tensors", Json::array()}},
                                              {{"as_scalar_type", 10}},
                                              {{"as_ints", Json::array()}},
                                              {{"as_floats", {1e300, 0}}},
                                              {{"as_memory_format", 2}}};
      pick(node["inputs"], random)["arg"] = kinds[below(random, kinds.size())];
    }
  }
}

// One forward of what was read, with small numbers: it ends, or says in one line why not.
void run_once(const Model& model) {
  int64_t bytes = 0;
  for (const auto& [name, type] : model.graph.values) bytes += type.bytes();
  if (bytes > (1 << 24)) return;  // sound, and no test of small machines
  const Segment segment(model.graph, all_nodes(model.graph), model.graph.outputs);
  const auto ones = [](const TensorType& type) {
    return at::ones(type.shape, at::TensorOptions(scalar_type_of(type.dtype)));
  };
  std::vector<at::Tensor> inputs, parameters, buffers;
  for (const auto& name : segment.inputs()) inputs.push_back(ones(model.graph.values.at(name)));
  for (const auto& name : segment.parameters()) parameters.push_back(initial_parameter(model, name, 1));
  for (const auto& name : segment.buffers()) buffers.push_back(initial_buffer(model, name));
  const at::NoGradGuard no_grad;
  segment.forward(std::move(inputs), parameters, buffers, {});
}

TEST_CASE("damaged and made-up programs are refused or run, never a crash") {
  const char* asked = std::getenv("PIPEWRIGHT_MUTATIONS");
  const int64_t count = asked != nullptr ? std::atoll(asked) : 1000;
  const char* seed = std::getenv("PIPEWRIGHT_MUTATION_SEED");
  const TemporaryFolder folder;
  const auto file = folder.path() / "damaged.pt2";
  const std::vector<std::string> names = {"no_loss_mse", "open_batch", "modes",
                                          "rotary",      "attention",  "batch_norm"};
  std::vector<Records> records;
  std::vector<Json> programs;
  std::vector<std::string> files;
  for (const std::string& name : names) {
    records.push_back(records_of(pt2_fixture(name)));
    programs.push_back(parse_json(records.back().at("models/model.json"), name));
    files.push_back(read_file(pt2_fixture(name)));
  }
  std::mt19937_64 random(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1);
  int64_t read = 0, ran = 0;
  double most = 0;
  for (int64_t i = 0; i < count; ++i) {
    // Mostly the first, which is the smallest and read the quickest.
    const size_t which = below(random, 32) != 0 ? 0 : below(random, names.size());
    const bool meaningful = i % 2 == 0;
    if (i % 4 == 1) {  // the container
      write_file(file, damaged(files[which], random));
    } else {  // a text in a sound container
      Records changed = records[which];
      if (meaningful) {
        Json program = programs[which];
        for (size_t edits = 1 + below(random, 3); edits > 0; --edits) change_meaning(program, random);
        changed["models/model.json"] = program.dump();
      } else {
        const std::string record =
            i % 8 == 3 ? "models/model.json" : "data/weights/model_weights_config.json";
        changed[record] = damaged(changed.at(record), random);
      }
      std::filesystem::remove(file);
      write_records(changed, file);
    }
    CAPTURE(i, names[which]);
    const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
    const int64_t before = live_bytes;
    peak_bytes = live_bytes;
    int64_t peak = -1;  // of reading alone
    try {
      const Model model = load_model(file.string() + (which == 0 ? ":loss=mse" : ""), 4);
      for (const auto& [name, stored] : model.stored) model.archive->read(stored);
      peak = peak_bytes;
      ++read;
      run_once(model);
      ++ran;
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
    if (peak < 0) peak = peak_bytes;
    most = std::max(most, static_cast<double>(peak - before) / static_cast<double>(size));
    if (peak - before > kFactor * size + kFixed) FAIL(peak - before << " bytes for a file of " << size);
    if ((i + 1) % 100000 == 0)
      std::fprintf(stderr, "%lld programs: %lld read, %lld of them ran\n", static_cast<long long>(i + 1),
                   static_cast<long long>(read), static_cast<long long>(ran));
  }
  INFO("at most " << most << " times the file");
  CHECK(read < count);
  CHECK(read > count / 100);
}

}  // namespace
}  // namespace pipewright
