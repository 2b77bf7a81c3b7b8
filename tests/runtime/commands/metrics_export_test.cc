// The numbers of runs as CSV and as TensorBoard's event files.
#include "runtime/commands/metrics_export.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/commands/event_file.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Matchers::Contains;

namespace fs = std::filesystem;

namespace {

constexpr const char* kLines =
    R"({"minibatch":0,"epoch":0,"loss":2.5,"samples":8,"elapsed_seconds":0.5,"learning_rate":0.1})"
    "\n"
    R"({"evaluation":{"epoch":0,"loss":1.25,"top1":null,"samples":16}})"
    "\n"
    R"({"minibatch":1,"epoch":0,"loss":null,"samples":8,"elapsed_seconds":1.0,"learning_rate":0.1,"gradient_norm":3})"
    "\n"
    R"({"generation":{"number":1,"first_minibatch":2,"plan":"generation-1.plan.json","reason":"slow","ranks":2}})"
    "\n"
    R"({"minibatch":2,"epoch":1,"loss":0.30000000000000004,"samples":8,"elapsed_seconds":1.25,"again":true})"
    "\n"
    R"({"speed":{"minibatch":1,"found":2,"slowdown":2.5,"rank":1}})"
    "\n";

fs::path run_in(const TemporaryFolder& folder, const std::string& name, const std::string& lines) {
  fs::create_directories(folder / name);
  std::ofstream(folder / name / "metrics.jsonl") << lines;
  return folder / name;
}

}  // namespace

TEST_CASE("CSV: a row for each line, a column for each number, digits as they were written") {
  const TemporaryFolder folder;
  write_metrics_csv({run_in(folder, "a", kLines)}, folder / "a.csv");
  CHECK(read_file(folder / "a.csv") ==
        "minibatch,epoch,loss,samples,elapsed_seconds,learning_rate,gradient_norm,again,evaluation.epoch,"
        "evaluation.loss,evaluation.top1,evaluation.samples,generation.number,generation.first_minibatch,"
        "generation.ranks,speed.minibatch,speed.found,speed.slowdown,speed.rank\n"
        "0,0,2.5,8,0.5,0.1,,,,,,,,,,,,,\n"
        "2,,,,,,,,0,1.25,nan,16,,,,,,,\n"
        "1,0,nan,8,1.0,0.1,3,,,,,,,,,,,,\n"
        "2,,,,,,,,,,,,1,2,2,,,,\n"
        "2,1,0.30000000000000004,8,1.25,,,1,,,,,,,,,,,\n"
        "2,,,,,,,,,,,,,,,1,2,2.5,1\n");
}

TEST_CASE("CSV: of several runs a column names the run, by its folder or by what tells folders apart") {
  const TemporaryFolder folder;
  const std::string line = R"({"minibatch":0,"epoch":0,"loss":1,"samples":8,"elapsed_seconds":1})"
                           "\n";
  const fs::path a = run_in(folder, "a", line), b = run_in(folder, "b,c", line);
  write_metrics_csv({a / "", b}, folder / "both.csv");
  CHECK(read_file(folder / "both.csv") ==
        "run,minibatch,epoch,loss,samples,elapsed_seconds\na,0,0,1,8,1\n\"b,c\",0,0,1,8,1\n");
  const fs::path other = run_in(folder, "other/a", line);
  write_metrics_csv({a, other}, folder / "both.csv");
  CHECK_THAT(read_file(folder / "both.csv"), Contains("/a,0,0") && Contains("/other/a,0,0"));
  CHECK_THAT(error_of<InputError>([&] {
               write_metrics_csv({a, a / ""}, folder / "both.csv");
             }),
             Contains("given twice"));
}

TEST_CASE("CSV: a folder without metrics, and a line that is none of metrics.jsonl, are named") {
  const TemporaryFolder folder;
  CHECK_THAT(
      error_of<InputError>([&] { write_metrics_csv({folder / "no"}, folder / "a.csv"); }),
      Contains("no/metrics.jsonl: is not there, and only it has the run's numbers minibatch by minibatch"));
  for (const char* line : {"[]", "{}", "{\"minibatch\":\"one\"}", "{\"evaluation\":3}"}) {
    const fs::path run = run_in(folder, "run", std::string(kLines) + line + "\n");
    CHECK_THAT(error_of<InputError>([&] { write_metrics_csv({run}, folder / "a.csv"); }),
               Contains("metrics.jsonl, line 7"));
  }
  CHECK_FALSE(fs::exists(folder / "a.csv"));
}

TEST_CASE("TensorBoard: CRC-32C as its authors publish it") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);  // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
}

// Of the reader that ships with TensorBoard: tests/end_to_end/read_events.py.
TEST_CASE("TensorBoard: an event file, byte by byte") {
  const TemporaryFolder folder;
  EventFile events(folder.path(), 1.5);
  events.add(2.5, 300, "loss", 0.5);
  events.commit();
  const std::string bytes = read_file(folder / "events.out.tfevents.pipewright");
  const std::string first(
      "\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d"
      "brain.Event:2",
      24);
  const std::string second(
      "\x09\0\0\0\0\0\0\x04\x40\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04"
      "loss\x15\0\0\0\x3f",
      27);
  REQUIRE(bytes.size() == 2 * 16 + first.size() + second.size());
  CHECK(bytes.substr(0, 8) == std::string("\x18\0\0\0\0\0\0\0", 8));
  CHECK(bytes.substr(12, first.size()) == first);
  CHECK(bytes.substr(12 + first.size() + 4 + 12, second.size()) == second);
}

TEST_CASE("TensorBoard: a folder for each run, and nothing of a run that cannot be read") {
  const TemporaryFolder folder;
  write_tensorboard({run_in(folder, "a", kLines), run_in(folder, "b", kLines)}, folder / "board");
  for (const char* run : {"a", "b"}) {
    const std::string bytes = read_file(folder / "board" / run / "events.out.tfevents.pipewright");
    for (const char* tag : {"loss", "learning_rate", "gradient_norm", "samples_per_second", "evaluation/loss",
                            "evaluation/top1", "slowdown/rank 1"})
      CHECK_THAT(bytes, Contains(tag));
  }
  CHECK_THROWS_AS(write_tensorboard({run_in(folder, "c", "[]\n")}, folder / "board"), InputError);
  CHECK_FALSE(fs::exists(folder / "board" / "c"));
}
