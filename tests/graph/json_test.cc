#include "graph/json.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "graph/error.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::error_of;

std::string parse_error(const std::string& text) {
  return error_of<InputError>([&] { parse_json(text, "x.json"); });
}

bool starts_with(const std::string& text, const std::string& begin) { return text.rfind(begin, 0) == 0; }

// The reader's error for one call on the object in `text`.
template <typename Call>
std::string reader_error(const std::string& text, const Call& call) {
  return error_of<InputError>([&] {
    const Json json = parse_json(text, "x.json");
    JsonReader reader(json, "x.json");
    call(reader);
  });
}

TEST_CASE("text that is not JSON is refused with its line and column") {
  CHECK(starts_with(parse_error("{\"a\": 1,\n \"b\": x}"), "x.json:2:7: not JSON: "));
  CHECK(starts_with(parse_error("{\"a\": 1"), "x.json:1:8: not JSON: "));
  CHECK(starts_with(parse_error("nonsense"), "x.json:1:2: not JSON: "));
  CHECK(starts_with(parse_error("{} {}"), "x.json:1:4: not JSON: "));
  CHECK(starts_with(parse_error("\x7f"
                                "ELF\x01\x02"),
                    "x.json:1:1: not JSON: "));
  CHECK(starts_with(parse_error("{\"a\": NaN}"), "x.json:1:7: not JSON: "));
  CHECK(starts_with(parse_error("{\"a\": 1e999}"), "x.json:1:"));
  CHECK(starts_with(parse_error("{\"a\": -Infinity}"), "x.json:1:"));
  CHECK(starts_with(parse_error("{\"a\": \"\xff\xfe\"}"), "x.json:1:8: not JSON: "));
  CHECK(starts_with(parse_error("{'a': 1}"), "x.json:1:2: not JSON: "));
  CHECK(starts_with(parse_error("{\"a\": 1,}"), "x.json:1:9: not JSON: "));
  CHECK(starts_with(parse_error(std::string("{\"a\": 1\0}", 9)), "x.json:1:8: not JSON: "));
  CHECK(parse_error("") == "x.json: empty; expected a JSON document");
  CHECK(parse_error(" \n\t") == "x.json: empty; expected a JSON document");
}

TEST_CASE("a text that was cut is refused wherever it was cut") {
  const std::string text = R"({"a": [1, 2.5e-3, {"b": null}], "c": "d\n", "e": true})";
  for (size_t length = 0; length < text.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(parse_json(text.substr(0, length), "x.json"), InputError);
  }
  CHECK(parse_json(text, "x.json").size() == 3);
}

TEST_CASE("errors are one line, however odd the text") {
  std::string odd = "{\"a\n";
  CHECK(parse_error(odd).find('\n') == std::string::npos);
  CHECK(parse_error("{\"" + std::string(100000, 'a')).size() < 500);
}

TEST_CASE("a key that is there twice is refused with its path") {
  CHECK(parse_error(R"({"a": 1, "a": 2})") == "x.json: a: the key is there twice");
  CHECK(parse_error(R"({"s": [{}, {"t": {"b": 1, "c": 2, "b": 1}}]})") ==
        "x.json: s[1].t.b: the key is there twice");
  CHECK(parse_error(R"({"v": {"fc.1": {"b": 1, "b": 1}}})") ==
        "x.json: v[\"fc.1\"].b: the key is there twice");
  CHECK(parse_json(R"([{"a": 1}, {"a": 1}])", "x.json").size() == 2);
}

TEST_CASE("deep nesting is refused, wide documents are read quickly") {
  const std::string deep(1000000, '[');
  CHECK(parse_error(deep) == "x.json: nested deeper than 64 levels: no document is");
  std::string wide = "{";
  for (int i = 0; i < 100000; ++i) wide += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  CHECK(parse_json(wide + "}", "x.json").size() == 100000);
}

TEST_CASE("missing keys") {
  CHECK(reader_error("{}", [](JsonReader& r) { r.string("model"); }) == "x.json: model: missing");
  CHECK(reader_error(R"({"modle": "x"})", [](JsonReader& r) { r.string("model"); }) ==
        "x.json: model: missing; did you mean \"modle\" which is there?");
  CHECK(reader_error(R"({"stage": {"a": 1}})", [](JsonReader& r) { r.object("stage").string("model"); }) ==
        "x.json: stage.model: missing");
  // A key that is merely asked for later is not what was meant.
  const std::string backward = R"({"backward_seconds": 1})";
  CHECK(reader_error(backward, [](JsonReader& r) {
          r.expect({"forward_seconds", "backward_seconds"});
          r.number("forward_seconds", 0, 1);
        }) == "x.json: forward_seconds: missing");
}

TEST_CASE("unknown keys") {
  CHECK(reader_error(R"({"a": 1, "modles": 1})", [](JsonReader& r) {
          r.has("a");
          r.has("model");
          r.finish();
        }) == "x.json: modles: unknown key; did you mean 'model'?");
  CHECK(reader_error(R"({"a": 1, "zebra": 1})", [](JsonReader& r) {
          r.has("a");
          r.has("model");
          r.finish();
        }) == "x.json: zebra: unknown key; known: a, model");
  CHECK(reader_error(R"({"a": 1, "": 1})", [](JsonReader& r) {
          r.has("a");
          r.finish();
        }) == "x.json: [\"\"]: unknown key; known: a");
}

TEST_CASE("wrong types say what was got and what was expected") {
  const std::string text =
      R"({"n": null, "b": true, "i": 3, "d": 2.5, "s": "x", "a": [1, "y"], "o": {"p": 1, "q": {}}, "big": 18446744073709551615})";
  const auto error = [&](const auto& call) { return reader_error(text, call); };
  CHECK(error([](JsonReader& r) { r.string("i"); }) == "x.json: i: got 3, expected a string");
  CHECK(error([](JsonReader& r) { r.string("n"); }) == "x.json: n: got null, expected a string");
  CHECK(error([](JsonReader& r) { r.boolean("s"); }) ==
        "x.json: s: got the string \"x\", expected true or false");
  CHECK(error([](JsonReader& r) { r.integer("d", 0, 9); }) == "x.json: d: got 2.5, expected an integer");
  CHECK(error([](JsonReader& r) { r.integer("b", 0, 9); }) == "x.json: b: got true, expected an integer");
  CHECK(error([](JsonReader& r) { r.number("a", 0, 9); }) == "x.json: a: got an array, expected a number");
  CHECK(error([](JsonReader& r) { r.strings("o"); }) ==
        "x.json: o: got an object, expected an array of strings");
  CHECK(error([](JsonReader& r) { r.strings("a"); }) == "x.json: a[0]: got 1, expected a string");
  CHECK(error([](JsonReader& r) { r.integers("a", 0, 9); }) ==
        "x.json: a[1]: got the string \"y\", expected an integer");
  CHECK(error([](JsonReader& r) { r.integers("s", 0, 9); }) ==
        "x.json: s: got the string \"x\", expected an array of integers");
  CHECK(error([](JsonReader& r) { r.object("a"); }) == "x.json: a: got an array, expected an object");
  CHECK(error([](JsonReader& r) { r.objects("a"); }) == "x.json: a[0]: got 1, expected an object");
  CHECK(error([](JsonReader& r) { r.objects("o"); }) ==
        "x.json: o: got an object, expected an array of objects");
  CHECK(error([](JsonReader& r) { r.entries("o"); }) == "x.json: o.p: got 1, expected an object");
  CHECK(error([](JsonReader& r) { r.string_entries("o"); }) == "x.json: o.p: got 1, expected a string");
  CHECK(error([](JsonReader& r) { r.integer("big", 0, std::numeric_limits<int64_t>::max()); }) ==
        "x.json: big: 18446744073709551615 is more than 9223372036854775807");
  CHECK(reader_error("[]", [](JsonReader&) {}) == "x.json: got an array, expected an object");
}

TEST_CASE("values out of range") {
  const std::string text = R"({"i": 0, "d": -0.5, "s": "hybird", "a": [1, -1]})";
  const auto error = [&](const auto& call) { return reader_error(text, call); };
  const int64_t most = std::numeric_limits<int64_t>::max();
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(error([](JsonReader& r) { r.integer("i", 1, 1024); }) == "x.json: i: 0 is not in 1..1024");
  CHECK(error([&](JsonReader& r) { r.integer("i", 1, most); }) == "x.json: i: 0 is less than 1");
  CHECK(error([](JsonReader& r) { r.number("d", 0, 1); }) == "x.json: d: -0.5 is not in 0.0..1.0");
  CHECK(error([&](JsonReader& r) { r.number("d", 0, infinity); }) == "x.json: d: -0.5 is less than 0.0");
  CHECK(error([](JsonReader& r) { r.integers("a", 0, 5); }) == "x.json: a[1]: -1 is not in 0..5");
  CHECK(error([](JsonReader& r) {
          r.string_one_of("s", {"dp", "hybrid"});
        }) == "x.json: s: \"hybird\" is not one of dp, hybrid; did you mean 'hybrid'?");
}

TEST_CASE("readers name nested places") {
  const std::string text = R"({"stages": [{"in_flight": 1}, {"in_flight": 0}]})";
  CHECK(reader_error(text, [](JsonReader& r) { r.objects("stages")[1].integer("in_flight", 1, 1024); }) ==
        "x.json: stages[1].in_flight: 0 is not in 1..1024");
}

TEST_CASE("the text is stable and readable") {
  Json json;
  json["schema"] = "pipewright.x/1";
  json["list"] = {1, 2, 3};
  json["empty"] = Json::array();
  json["none"] = Json::object();
  json["small"] = {{"a", 1.5}, {"b", {"x", "y"}}};
  json["deep"] = {{"inner", {{"a", nullptr}}}, {"objects", {{{"k", true}}, {{"k", false}}}}};
  CHECK(json_text(json) ==
        "{\n"
        "  \"schema\": \"pipewright.x/1\",\n"
        "  \"list\": [1, 2, 3],\n"
        "  \"empty\": [],\n"
        "  \"none\": {},\n"
        "  \"small\": {\"a\": 1.5, \"b\": [\"x\", \"y\"]},\n"
        "  \"deep\": {\n"
        "    \"inner\": {\"a\": null},\n"
        "    \"objects\": [\n"
        "      {\"k\": true},\n"
        "      {\"k\": false}\n"
        "    ]\n"
        "  }\n"
        "}\n");
  CHECK(parse_json(json_text(json), "x") == json);
  // No line is longer than 120 columns because of an object.
  Json wide;
  wide["a"] = {{"first", std::string(60, 'x')}, {"second", std::string(60, 'y')}};
  CHECK(json_text(wide).find("{\n    \"first\"") != std::string::npos);
}

TEST_CASE("numbers read back bit-equal") {
  std::mt19937_64 random(11);
  for (int i = 0; i < 2000; ++i) {
    double value = 0;
    const uint64_t bits = random();
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    Json json;
    json["x"] = value;
    const Json again = parse_json(json_text(json), "x");
    const auto got = again["x"].get<double>();
    CHECK(std::memcmp(&got, &value, sizeof(value)) == 0);
  }
}

TEST_CASE("a number that JSON cannot hold is a defect of the writer") {
  Json json;
  json["x"] = std::nan("");
  CHECK_THROWS_AS(json_text(json), CheckError);
  CHECK(finite_or_null(std::nan("")).is_null());
  CHECK(finite_or_null(std::numeric_limits<double>::infinity()).is_null());
  CHECK(finite_or_null(1.5) == 1.5);
  CHECK(std::isnan(number_or_nan(nullptr)));
  CHECK(number_or_nan(1.5) == 1.5);
}

TEST_CASE("digests are fixed for ever") {
  CHECK(digest_of("") == "xxh128:99aa06d3014798d86001c324468d497f");  // xxHash's own test vector
  CHECK(digest_of("pipewright") == digest_of("pipewright"));
  CHECK(digest_of("pipewright") != digest_of("Pipewright"));
}

TEST_CASE("described and in_quotes stay on one line") {
  CHECK(in_quotes("a\nb") == "\"a\\nb\"");
  CHECK(in_quotes(std::string(200, 'x')).size() < 100);
  CHECK(in_quotes("\xff") == "\"\xef\xbf\xbd\"");
  CHECK(described(Json::object()) == "an object");
  CHECK(join({"a", "b"}, ", ") == "a, b");
}

}  // namespace
}  // namespace pipewright
