#include "graph/graph_arguments.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "graph/dtypes.h"

namespace pipewright {
namespace {

// Masks are filled with infinities, which JSON has not: arguments, and nothing else, spell them as strings.
Json float_to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return value;
}

double float_from_json(const Json& json, const std::string& where, const std::string& path) {
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  if (!json.is_number()) {
    fail_document(where, path, "got " + described(json) + R"(, expected a number, "inf", "-inf" or "nan")");
  }
  return json.get<double>();
}

constexpr int64_t kMinInt = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

std::vector<double> read_floats(JsonReader& reader) {
  const Json& list = reader.raw("floats");
  if (!list.is_array()) reader.fail("floats", "got " + described(list) + ", expected an array of numbers");
  std::vector<double> values;
  for (size_t i = 0; i < list.size(); ++i) {
    values.push_back(
        float_from_json(list[i], reader.where(), reader.place("floats") + "[" + std::to_string(i) + "]"));
  }
  return values;
}

std::vector<bool> read_bools(JsonReader& reader) {
  const Json& list = reader.raw("bools");
  if (!list.is_array())
    reader.fail("bools", "got " + described(list) + ", expected an array of true and false");
  std::vector<bool> values;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_boolean()) {
      fail_document(reader.where(), reader.place("bools") + "[" + std::to_string(i) + "]",
                    "got " + described(list[i]) + ", expected true or false");
    }
    values.push_back(list[i].get<bool>());
  }
  return values;
}

struct ArgumentRow {
  const char* key;
  std::function<Argument(JsonReader&)> read;
};

const std::vector<ArgumentRow>& argument_rows() {
  static const std::vector<ArgumentRow> rows = {
      {"none",
       [](JsonReader& r) {
         if (!r.boolean("none")) r.fail("none", "got false, expected true");
         return Argument(NoneArgument{});
       }},
      {"tensor", [](JsonReader& r) { return Argument(TensorArgument{r.string("tensor")}); }},
      {"tensors", [](JsonReader& r) { return Argument(TensorsArgument{r.strings("tensors")}); }},
      {"dtype",
       [](JsonReader& r) { return Argument(DtypeArgument{r.string_one_of("dtype", dtype_names())}); }},
      {"bool", [](JsonReader& r) { return Argument(r.boolean("bool")); }},
      {"int", [](JsonReader& r) { return Argument(r.integer("int", kMinInt, kMaxInt)); }},
      {"float",
       [](JsonReader& r) { return Argument(float_from_json(r.raw("float"), r.where(), r.place("float"))); }},
      {"string", [](JsonReader& r) { return Argument(r.string("string")); }},
      {"ints", [](JsonReader& r) { return Argument(r.integers("ints", kMinInt, kMaxInt)); }},
      {"floats", [](JsonReader& r) { return Argument(read_floats(r)); }},
      {"bools", [](JsonReader& r) { return Argument(read_bools(r)); }},
  };
  return rows;
}

}  // namespace

Json argument_to_json(const Argument& argument) {
  struct Visitor {
    Json operator()(const NoneArgument&) const { return {{"none", true}}; }
    Json operator()(const TensorArgument& a) const { return {{"tensor", a.name}}; }
    Json operator()(const TensorsArgument& a) const { return {{"tensors", a.names}}; }
    Json operator()(const DtypeArgument& a) const { return {{"dtype", a.dtype}}; }
    Json operator()(bool a) const { return {{"bool", a}}; }
    Json operator()(int64_t a) const { return {{"int", a}}; }
    Json operator()(double a) const { return {{"float", float_to_json(a)}}; }
    Json operator()(const std::string& a) const { return {{"string", a}}; }
    Json operator()(const std::vector<int64_t>& a) const { return {{"ints", a}}; }
    Json operator()(const std::vector<double>& a) const {
      Json list = Json::array();
      for (const double value : a) list.push_back(float_to_json(value));
      return {{"floats", list}};
    }
    Json operator()(const std::vector<bool>& a) const { return {{"bools", a}}; }
  };
  return std::visit(Visitor{}, argument);
}

Argument argument_from_json(JsonReader& reader) {
  std::vector<std::string> keys;
  const ArgumentRow* kind = nullptr;
  for (const ArgumentRow& row : argument_rows()) {
    keys.emplace_back(row.key);
    if (!reader.has(row.key)) continue;
    if (kind != nullptr) {
      reader.fail(
          "", std::string("has both '") + kind->key + "' and '" + row.key + "', expected one kind of value");
    }
    kind = &row;
  }
  reader.finish();
  if (kind == nullptr) reader.fail("", "has no value; expected one of " + join(keys, ", "));
  return kind->read(reader);
}

}  // namespace pipewright
