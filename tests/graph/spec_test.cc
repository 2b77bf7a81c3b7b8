#include "graph/spec.h"

#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "graph/error.h"

namespace pipewright {
namespace {

using Catch::Contains;
using Options = std::vector<std::pair<std::string, std::string>>;

SpecOptions options(const std::string& text) { return SpecOptions(parse_spec(text, "model")); }

std::string error(const std::function<void()>& run) {
  try {
    run();
  } catch (const InputError& input) {
    return input.what();
  }
  return "nothing was thrown";
}

std::string parse_error(const std::string& text) {
  return error([&] { parse_spec(text, "model"); });
}

TEST_CASE("a SPEC is a name and options in order") {
  const Spec plain = parse_spec("vgg16", "model");
  CHECK(plain.name == "vgg16");
  CHECK(plain.options.empty());
  const Spec spec = parse_spec("mlp:layers=8,root=/a:b=c", "model");
  CHECK(spec.name == "mlp");
  CHECK(spec.options == Options{{"layers", "8"}, {"root", "/a:b=c"}});  // only the first ':' and '=' separate
  CHECK(parse_spec("x:root=a\\,b,c=\\d", "model").options == Options{{"root", "a,b"}, {"c", "\\d"}});
}

TEST_CASE("malformed SPECs") {
  CHECK(parse_error("") == "model '': it has no name");
  CHECK(parse_error(":a=1") == "model ':a=1': it has no name");
  CHECK(parse_error("x:") == "model 'x:': an option is empty; expected key=value");
  CHECK_THAT(parse_error("x:a=1,"), Contains("an option is empty"));
  CHECK_THAT(parse_error("x:a"), Contains("option 'a' has no value; expected a=VALUE"));
  CHECK_THAT(parse_error("x:=1"), Contains("option '=1' has no key"));
  CHECK_THAT(parse_error("x:a="), Contains("option 'a' has an empty value"));
  CHECK_THAT(parse_error("x:a=1,b=2,a=3"), Contains("option 'a' is given twice"));
}

TEST_CASE("text and parse are inverse") {
  std::mt19937_64 random(1);
  const std::string letters = "ab=:,\\ /1";
  for (int round = 0; round < 500; ++round) {
    Spec spec{"data", "name", {}};
    for (uint64_t i = random() % 4; i > 0; --i) {
      std::string value = "v";
      for (uint64_t c = random() % 6; c > 0; --c) value += letters[random() % letters.size()];
      // A backslash before a comma is what the form cannot say.
      if (value.find("\\,") == std::string::npos && value.back() != '\\') {
        spec.options.emplace_back("k" + std::to_string(i), value);
      }
    }
    const Spec back = parse_spec(spec.text(), "data");
    REQUIRE(back.options == spec.options);
    REQUIRE(back.text() == spec.text());
  }
}

TEST_CASE("options: values, defaults, ranges") {
  SpecOptions given = options("x:layers=8,rate=0.5,seed=-3,mode=fast,file=a b");
  CHECK(given.integer("layers", 1, 1, 10) == 8);
  CHECK(given.integer("width", 7, 1, 5) == 7);  // a default is not checked: the caller's own
  CHECK(given.integer("seed", 0, -5, 5) == -3);
  CHECK(given.number("rate", 1, 0, 1) == 0.5);
  CHECK(given.number("decay", 0.25, 0, 1) == 0.25);
  CHECK(given.choice("mode", "slow", {"slow", "fast"}) == "fast");
  CHECK(given.choice("other", "slow", {"slow", "fast"}) == "slow");
  CHECK(given.string("file", "") == "a b");
  CHECK(given.has("file"));
  CHECK(!given.has("folder"));
  CHECK_NOTHROW(given.finish());
}

TEST_CASE("options: what is malformed or out of range") {
  for (const std::string value :
       {"0", "11", "x", "1.5", "1e1", " 1", "1 ", "+1", "0x1", "99999999999999999999"}) {
    CHECK(error([&] { options("x:n=" + value).integer("n", 1, 1, 10); }) ==
          "model 'x:n=" + value + "': n: got '" + value + "', expected an integer in 1..10");
  }
  for (const std::string value : {"-0.1", "1.1", "x", "nan", "inf", "1e999", "0.5f"}) {
    CHECK(error([&] { options("x:n=" + value).number("n", 1, 0, 1); }) ==
          "model 'x:n=" + value + "': n: got '" + value + "', expected a number in 0..1");
  }
  CHECK(error([] {
          options("x:m=fats").choice("m", "slow", {"slow", "fast"});
        }) == "model 'x:m=fats': m: got 'fats', expected slow|fast; did you mean 'fast'?");
}

TEST_CASE("options: one that nobody asked for") {
  SpecOptions given = options("x:clases=10");
  given.integer("classes", 1, 1, 10);
  given.integer("image", 1, 1, 10);
  CHECK(error([&] { given.finish(); }) ==
        "model 'x:clases=10': unknown option 'clases'; did you mean 'classes'?");
  CHECK_THAT(error([] { options("x:a=1").finish(); }), Contains("unknown option 'a'; 'x' has no options"));
}

}  // namespace
}  // namespace pipewright
