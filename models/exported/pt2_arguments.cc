#include "models/exported/pt2_arguments.h"

#include <limits>

#include "graph/error.h"
#include "models/exported/pt2_types.h"

namespace pipewright {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

/// The key of a union such as {"as_tensor": ...}.
std::string kind_of(const JsonReader& reader, const Json& json) {
  if (!json.is_object() || json.size() != 1)
    reader.fail("", "got " + described(json) + ", expected an object of one key");
  return json.begin().key();
}

std::string memory_format(JsonReader& reader, const std::string& key) {
  static const char* const names[] = {"", "contiguous_format", "channels_last", "channels_last_3d",
                                      "preserve_format"};
  return names[reader.integer(key, 1, 4)];
}

double float_of(const JsonReader& reader, const std::string& key, const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "Infinity") return std::numeric_limits<double>::infinity();
  if (json == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (json == "NaN") return std::numeric_limits<double>::quiet_NaN();
  reader.fail(key, "got " + described(json) + ", expected a number");
}

const Json& list_of(JsonReader& reader, const std::string& key) {
  const Json& list = reader.raw(key);
  if (!list.is_array()) reader.fail(key, "got " + described(list) + ", expected an array");
  return list;
}

int64_t size_of(JsonReader argument, const Pt2Surroundings& around) {
  if (argument.has("as_int")) return argument.integer("as_int", kMin, kMax);
  return around.size(argument.string("as_name"));
}

}  // namespace

Argument pt2_argument(JsonReader& input, const std::string& name, const Pt2Surroundings& around) {
  JsonReader reader = input.object("arg");
  const std::string kind = kind_of(reader, input.raw("arg"));
  reader.has(kind);
  const auto tensor = [&](JsonReader one) { return around.tensor(one.string("name")); };
  const auto optional = [&](JsonReader one) {
    return one.has("as_none") ? std::string() : tensor(one.object("as_tensor"));
  };
  if (kind == "as_none") return NoneArgument{};
  if (kind == "as_tensor") return TensorArgument{tensor(reader.object(kind))};
  if (kind == "as_optional_tensor") {
    const std::string one = optional(reader.object(kind));
    if (one.empty()) return NoneArgument{};
    return TensorArgument{one};
  }
  if (kind == "as_tensors" || kind == "as_optional_tensors") {
    TensorsArgument tensors;
    for (JsonReader& one : reader.objects(kind))
      tensors.names.push_back(kind == "as_tensors" ? tensor(one) : optional(one));
    return tensors;
  }
  if (kind == "as_int") return reader.integer(kind, kMin, kMax);
  if (kind == "as_ints") return reader.integers(kind, kMin, kMax);
  if (kind == "as_bool") return reader.boolean(kind);
  if (kind == "as_string") return reader.string(kind);
  if (kind == "as_float") return float_of(reader, kind, reader.raw(kind));
  if (kind == "as_floats") {
    std::vector<double> numbers;
    for (const Json& number : list_of(reader, kind)) numbers.push_back(float_of(reader, kind, number));
    return numbers;
  }
  if (kind == "as_bools") {
    std::vector<bool> truths;
    for (const Json& truth : list_of(reader, kind)) {
      if (!truth.is_boolean()) reader.fail(kind, "got " + described(truth) + ", expected true or false");
      truths.push_back(truth.get<bool>());
    }
    return truths;
  }
  if (kind == "as_sym_int") return size_of(reader.object(kind), around);
  if (kind == "as_sym_ints") {
    std::vector<int64_t> sizes;
    for (JsonReader& size : reader.objects(kind)) sizes.push_back(size_of(size, around));
    return sizes;
  }
  if (kind == "as_sym_bool" && reader.object(kind).has("as_bool"))
    return reader.object(kind).boolean("as_bool");
  if (kind == "as_sym_float" && reader.object(kind).has("as_float"))
    return float_of(reader, kind, reader.object(kind).raw("as_float"));
  if (kind == "as_scalar_type") return DtypeArgument{pt2_dtype(reader.integer(kind, 0, 1000), around.where)};
  if (kind == "as_memory_format") return memory_format(reader, kind);
  if (kind == "as_layout") {
    if (reader.integer(kind, 0, 1000) != 7) around.fail("argument '" + name + "' is not the strided layout");
    return std::string("strided");
  }
  // Where it was exported says nothing of where it will run.
  if (kind == "as_device") return std::string("cpu");
  around.fail("argument '" + name + "' is of the kind " + in_quotes(kind) + ", which is not supported");
  return NoneArgument{};  // fail() throws
}

}  // namespace pipewright
