// Problems drawn from the options of `plan`: whatever comes out of it is what all other commands take, and
// say the same of.
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "graph/document.h"
#include "graph/plan.h"
#include "graph/units.h"
#include "tests/optimizer/cli.h"
#include "tests/support/long.h"

namespace pipewright {
namespace {

using testing::Cli;
using testing::Outcome;

class Drawing {
 public:
  explicit Drawing(unsigned seed) : random_(seed) {}

  /// What all commands are told of the devices.
  std::string devices() {
    std::string words;
    int levels = 1;
    const int kind = below(3);
    if (kind == 0) {
      words = "--gpus " + one_of({"1", "2", "3", "4", "5", "8"});
    } else if (kind == 1) {
      const std::string counts = one_of({"2,2", "4,2", "2,2,2", "3,2", "1,4", "4,1"});
      levels = static_cast<int>(std::count(counts.begin(), counts.end(), ',')) + 1;
      words = "--levels " + counts;
    } else {
      std::string classes;
      for (int c = 0, count = 1 + below(3); c < count; ++c) {
        classes += (c > 0 ? "," : "") + one_of({"1", "2", "3"}) + ":" + one_of({"1", "0.5", "2", "0.1"});
        if (likely(0.4)) classes += ":" + memory();
      }
      words = "--device-classes " + classes;
    }
    words += " --bandwidths " + each(levels, {"100kB/s", "1MB/s", "20MB/s", "1GB/s"});
    if (likely(0.5)) words += " --latency " + each(levels, {"0s", "5us", "1ms"});
    if (likely(0.3)) words += " --shared " + each(levels, {"yes", "no"});
    if (likely(0.3)) words += " --memory " + memory();
    if (likely(0.3)) words += " --optimizer " + one_of({"sgd", "adam", "nadam", "lion", "muon"});
    if (likely(0.2)) words += " --delay-correction " + one_of({"error-feedback", "dc", "pipemare-t1"});
    return words;
  }

  /// What is asked of the plan.
  std::string wishes() {
    std::string words;
    if (likely(0.35)) {
      words += " --schedule " + one_of({"gpipe", "1f1b-flush", "interleaved", "zb-h1", "1f1b"});
    } else if (likely(0.25)) {
      words += " --weights " + one_of({"2bw", "vertical", "flush", "stash"});
    }
    if (likely(0.2)) words += " --microbatches " + one_of({"1", "2", "3", "7", "16"});
    if (likely(0.3)) words += " --strategy " + one_of({"dp", "straight", "hybrid", "model-parallel", "best"});
    if (likely(0.15)) words += " --max-stages " + one_of({"1", "2", "3"});
    if (likely(0.1)) words += " --replicas " + one_of({"0:2", "1:2", "0:1,1:2", "2:1"});
    if (likely(0.2)) words += " --recompute " + one_of({"never", "always", "auto"});
    if (likely(0.1)) words += " --use-all-devices";
    return words;
  }

  bool likely(double part) { return std::uniform_real_distribution<>(0, 1)(random_) < part; }

 private:
  int below(int end) { return std::uniform_int_distribution<>(0, end - 1)(random_); }
  std::string one_of(const std::vector<std::string>& words) {
    return words[static_cast<size_t>(below(static_cast<int>(words.size())))];
  }
  std::string each(int count, const std::vector<std::string>& words) {
    std::string all = one_of(words);
    for (int l = 1; l < count; ++l) all += "," + one_of(words);
    return all;
  }
  std::string memory() { return one_of({"8kB", "15kB", "30kB", "100kB", "1GB"}); }

  std::mt19937 random_;
};

TEST_CASE("drawn problems: what plan writes all commands take, and price alike") {
  const Cli cli;
  const unsigned seed = testing::is_long() ? std::random_device()() : 45;
  CAPTURE(seed);
  Drawing draw(seed);
  std::map<int, int> codes;
  for (int round = 0; round < (testing::is_long() ? 2000 : 80); ++round) {
    const std::string known = "--profile profile.json " + draw.devices();
    const std::string asked = known + draw.wishes();
    std::filesystem::remove(cli.path("plan.json"));
    const Outcome outcome = cli.run("plan " + asked + " --output plan.json");
    INFO("plan " << asked << "\n" << outcome.error);
    ++codes[outcome.code];
    // A problem that is wrong, or has no plan; anything else is a defect.
    CHECK((outcome.code == 0 || outcome.code == 2 || outcome.code == 4));
    CHECK_THAT(outcome.out, !Catch::Contains("nan"));
    if (outcome.code != 0) continue;
    const Plan plan = read_document<Plan>(cli.path("plan.json"));
    REQUIRE(plan.predicted.has_value());
    CHECK(plan.predicted->lower_bound_seconds <= plan.predicted->minibatch_seconds);
    const Outcome evaluated = cli.run("evaluate --plan plan.json " + known + " --json");
    INFO(evaluated.error);
    REQUIRE(evaluated.code == 0);
    CHECK(parse_json(evaluated.out, "out")["predicted"]["minibatch_seconds"].get<double>() ==
          Approx(plan.predicted->minibatch_seconds).epsilon(1e-9));
    for (const std::string command : {"check", "simulate", "show"}) {
      const Outcome other = cli.run(command + " --plan plan.json " + known);
      INFO(command << ": " << other.out << other.error);
      CHECK(other.code == 0);
      const std::string seconds = format_seconds(plan.predicted->minibatch_seconds) + " per minibatch";
      if (command != "check") CHECK_THAT(other.out, Catch::Contains(seconds));
    }
    if (draw.likely(0.2)) {
      const std::string first = read_file(cli.path("plan.json"));
      CHECK(cli.run("plan " + asked + " --output again.json").code == 0);
      CHECK(read_file(cli.path("again.json")) == first);
    }
  }
  CHECK(codes[0] > 20);
  CHECK(codes[2] > 5);
  CHECK(codes[4] > 3);
}

}  // namespace
}  // namespace pipewright
