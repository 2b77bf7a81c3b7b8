#include <algorithm>
#include <optional>
#include <string>

#include "graph/error.h"
#include "graph/nearest.h"
#include "models/definition/scoring.h"
#include "runtime/data/encoded_text.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

std::string type_text(const TensorType& type) { return type.dtype + " " + shape_text(type.shape); }

// Does the kind of data set that `spec` names have this option?
bool has_option(const Spec& spec, const std::string& option) {
  for (const DatasetRow& row : dataset_rows()) {
    if (spec.name == row.name)
      return (", " + std::string(row.options)).find(", " + option + "=") != std::string::npos;
  }
  return false;
}

// `spec` with these options, a command line's way to the remedy.
std::string with_options(Spec spec, const std::vector<std::pair<std::string, std::string>>& changes) {
  for (const auto& [key, value] : changes) {
    const auto found = std::find_if(spec.options.begin(), spec.options.end(),
                                    [&key = key](const auto& option) { return option.first == key; });
    if (found == spec.options.end()) {
      spec.options.emplace_back(key, value);
    } else {
      found->second = value;
    }
  }
  return spec.text();
}

std::string kinds_that_have(const std::string& field) {
  if (field == "starts" || field == "ends" || field == "mask" || field == "segments") {
    return "likely: --data sentences:root=DIR,vocabulary=vocab.txt, or --data "
           "questions:file=train-v1.1.json,vocabulary=vocab.txt";
  }
  if (field == "tokens") return "likely: --data synthetic-text, or --data text:file=FILE";
  if (field == "source" || field == "target") return "likely: --data translation:file=PAIRS.tsv";
  return "likely: another data set or another model";
}

TensorType sample_type_of(const Graph& graph, const std::string& input) {
  TensorType type = graph.values.at(input);
  PW_CHECK(!type.shape.empty(), "graph input " << input << " has no batch dimension");
  type.shape.erase(type.shape.begin());
  return type;
}

// Of an exported program, whose inputs can be bound to fields of other names: the first field of the right
// type that no input has. Nothing for models of the zoo.
std::optional<std::string> binding_remedy(const Dataset& dataset, const Graph& graph,
                                          const std::string& input) {
  Spec model = parse_spec(graph.name, "model");
  if (!model.name.ends_with(".pt2")) return std::nullopt;
  const TensorType wanted = sample_type_of(graph, input);
  // The program's own name of the input, if the SPEC has bound it to a field already.
  const auto bound = std::find_if(model.options.begin(), model.options.end(),
                                  [&](const auto& option) { return option.second == input; });
  const std::string name = bound == model.options.end() ? input : bound->first;
  for (const DataField& field : dataset.fields()) {
    const bool taken = std::find(graph.inputs.begin(), graph.inputs.end(), field.name) != graph.inputs.end();
    if (taken || !(field.sample_type == wanted)) continue;
    return "likely: --model " + with_options(std::move(model), {{name, field.name}});
  }
  return "no field that is left is " + type_text(wanted) +
         " a sample: export the program with inputs like the data's, or give it data of your own, "
         "--data tensors:file=FILE.safetensors";
}

// What to change so that the data set makes samples of this shape, or the model takes what it makes.
std::string shape_remedy(const Dataset& dataset, const Spec& spec, const Graph& graph,
                         const std::string& field, const std::vector<int64_t>& got,
                         const std::vector<int64_t>& expected) {
  const auto image = [](const std::vector<int64_t>& shape) {
    return shape.size() == 3 && shape[1] == shape[2];
  };
  if (image(got) && image(expected)) {
    const bool idx = spec.name == "fashion-mnist" || spec.name == "mnist";  // made larger, not smaller
    const bool possible = has_option(spec, "image") && (!idx || expected[1] >= 28) &&
                          (spec.name == "synthetic-images" || expected[0] == 1 || expected[0] == 3);
    if (possible) {
      std::vector<std::pair<std::string, std::string>> changes;
      if (got[1] != expected[1]) changes.emplace_back("image", std::to_string(expected[1]));
      if (got[0] != expected[0]) changes.emplace_back("channels", std::to_string(expected[0]));
      return "likely: --data " + with_options(spec, changes) +
             "; or give the model the options image=" + std::to_string(got[1]) +
             ",channels=" + std::to_string(got[0]) + " where it has them";
    }
    return "give the model the options image=" + std::to_string(got[1]) +
           ",channels=" + std::to_string(got[0]) + " where it has them";
  }
  // Texts: the length is the option `tokens`, of pairs of sentences the one named as the field.
  const std::string length = has_option(spec, "tokens") ? "tokens" : field == "labels" ? "target" : field;
  if (got.size() == 1 && expected.size() == 1 && has_option(spec, length)) {
    return "likely: --data " + with_options(spec, {{length, std::to_string(expected[0])}}) +
           "; or give the model the option " + length + "=" + std::to_string(got[0]) + " where it has it";
  }
  return binding_remedy(dataset, graph, field)
      .value_or(
          "this model is made for other data; pipewright-profiler models lists the models and their options");
}

// Rows of the table in which the graph looks `input` up; nothing if it does not.
std::optional<int64_t> table_rows(const Graph& graph, const std::string& input) {
  for (const Node& node : graph.nodes) {
    const auto read = node.reads();
    if (node.op != "aten::embedding" || std::find(read.begin(), read.end(), input) == read.end()) continue;
    for (const Parameter& parameter : graph.parameters)
      if (std::find(read.begin(), read.end(), parameter.name) != read.end())
        return parameter.type.shape.at(0);
  }
  return std::nullopt;
}

// Labels lie in [0, the result), but for those that are `ignored`.
int64_t classes_but(const Dataset& dataset, int64_t ignored) {
  const auto& fields = dataset.fields();
  const auto field =
      std::find_if(fields.begin(), fields.end(), [](const DataField& of) { return of.name == "labels"; });
  if (ignored != dataset.classes() - 1 || field == fields.end() || field->sample_type.dtype != "int64")
    return dataset.classes();
  std::vector<int64_t> labels(static_cast<size_t>(field->sample_type.elements()));
  int64_t largest = 0;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    dataset.read(i, static_cast<size_t>(field - fields.begin()), {}, labels.data());
    for (const int64_t label : labels)
      if (label != ignored) largest = std::max(largest, label);
  }
  return largest + 1;
}

// Labels that a cross entropy compares with scores have some.
void check_labels(const Dataset& dataset, const Graph& graph, const Spec& spec, const std::string& where) {
  const auto scoring = scoring_of(graph);
  if (!scoring || scoring->labels != "labels" || dataset.classes() <= scoring->classes) return;
  const int64_t classes = classes_but(dataset, scoring->ignored);
  if (classes <= scoring->classes) return;
  const std::string option = has_option(spec, "vocabulary") ? "vocabulary" : "classes";
  std::string remedy = parse_spec(graph.name, "model").name.ends_with(".pt2")
                           ? "export a model of " + std::to_string(classes) + " classes"
                           : "likely: the model's option " + option + "=" + std::to_string(classes);
  if (has_option(spec, option))
    remedy += ", or --data " + with_options(spec, {{option, std::to_string(scoring->classes)}});
  throw InputError(where + "labels: got " + std::to_string(classes) + " classes, expected at most " +
                       std::to_string(scoring->classes) + ", the scores that '" + scoring->scores +
                       "' has for a label",
                   remedy);
}

}  // namespace

void check_dataset_for_graph(const Dataset& dataset, const Graph& graph, const std::string& data_spec) {
  const Spec spec = parse_spec(data_spec, "data");
  const std::string where = "data '" + data_spec + "' for model '" + graph.name + "': ";
  std::vector<std::string> names;
  for (const DataField& field : dataset.fields()) names.push_back(field.name);

  for (const std::string& input : graph.inputs) {
    const auto found = std::find(names.begin(), names.end(), input);
    if (found == names.end()) {
      std::string list;
      for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
      throw InputError(where + "the model reads the field '" + input + "', the data set has " + list,
                       binding_remedy(dataset, graph, input).value_or(kinds_that_have(input)));
    }
    const TensorType& got = dataset.fields()[static_cast<size_t>(found - names.begin())].sample_type;
    const TensorType expected = sample_type_of(graph, input);
    if (got.dtype != expected.dtype) {
      throw InputError(where + "field '" + input + "': got " + type_text(got) + ", expected " +
                           type_text(expected) + " a sample",
                       binding_remedy(dataset, graph, input).value_or("this model is made for other data"));
    }
    if (got.shape != expected.shape) {
      throw InputError(where + "field '" + input + "': got samples of shape " + shape_text(got.shape) +
                           ", expected " + shape_text(expected.shape),
                       shape_remedy(dataset, spec, graph, input, got.shape, expected.shape));
    }
    const auto* const encoded = dynamic_cast<const EncodedDataset*>(&dataset);
    const auto rows = input == "tokens" ? table_rows(graph, input) : std::nullopt;
    if (encoded != nullptr && rows && *rows < encoded->vocabulary()) {
      const int64_t bound = encoded->vocabulary();
      throw InputError(where + "field '" + input + "': its numbers are less than " + std::to_string(bound) +
                           ", the model's table for them has " + std::to_string(*rows) + " rows",
                       "likely: the model's option vocabulary=" + std::to_string(bound));
    }
  }

  check_labels(dataset, graph, spec, where);
}

}  // namespace pipewright
