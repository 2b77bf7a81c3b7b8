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

TEST_CASE("paths with commas, colons, equals, blanks, backslashes and other letters are names and values") {
  const auto value = [](const std::string& written) {
    const Spec spec = parse_spec("tensors:file=" + written + ",samples=4", "data");
    REQUIRE(spec.options.size() == 2);
    CHECK(spec.options[1] == std::pair<std::string, std::string>("samples", "4"));
    return spec.options[0].second;
  };
  const auto name = [](const std::string& written) {
    const Spec spec = parse_spec(written + ":samples=4", "model");
    CHECK(spec.options == Options{{"samples", "4"}});
    return spec.name;
  };
  // Plain or behind a backslash, in a name or in a value: the same path.
  for (const auto& [written, path] :
       Options{{"/a b/c,d.pt2", "/a b/c,d.pt2"},
               {"/a b/c\\,d.pt2", "/a b/c,d.pt2"},
               {"a,,b", "a,,b"},
               {"b\\:c.pt2", "b:c.pt2"},
               {"b\\,c=1.pt2", "b,c=1.pt2"},
               {"b=1.pt2", "b=1.pt2"},
               {"\u00e9t\u00e9, \u6a21\u578b.pt2", "\u00e9t\u00e9, \u6a21\u578b.pt2"},
               {"C\\:\\models\\m.pt2", "C:\\models\\m.pt2"},
               {"a\\\\\\,b.pt2", "a\\,b.pt2"}}) {
    INFO(written);
    CHECK(name(written) == path);
    if (path != "a,,b") CHECK(value(written) == path);
  }
  CHECK(value("/x:y") == "/x:y");
  CHECK(parse_spec("x:a=1,2,b=3,4", "model").options == Options{{"a", "1,2"}, {"b", "3,4"}});
  CHECK_THAT(parse_error("dir:x/model.pt2"), Contains("option 'x/model.pt2' has no value"));
}

TEST_CASE("text and parse are inverse") {
  std::mt19937_64 random(1);
  const std::string letters = "ab=:,\\ /1";
  const auto word = [&] {
    std::string text = "v";
    for (uint64_t c = random() % 6; c > 0; --c) text += letters[random() % letters.size()];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    Spec spec{"data", word(), {}};
    for (uint64_t i = random() % 4; i > 0; --i) spec.options.emplace_back("k" + std::to_string(i), word());
    const Spec back = parse_spec(spec.text(), "data");
    INFO(spec.text());
    REQUIRE(back.name == spec.name);
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
