// What is in force where --cuda-graphs is left to itself: never what would be refused if it were asked for.
#include <catch2/catch.hpp>

#include "runtime/job/job.h"

using namespace pipewright;

TEST_CASE("graphs that nobody asked for are off where none can be, and others stay as they were asked for") {
  Job job;
  const auto in_force = [&](const std::string& asked) {
    job.run.cuda_graphs = asked;
    return cuda_graphs_of(job);
  };
  CHECK(in_force("auto") == "off");
  CHECK(in_force("on") == "on");  // the summary says why not
  job.device = c10::Device(c10::kCUDA, 0);
  CHECK(in_force("auto") == "auto");
  CHECK(in_force("on") == "on");
  CHECK(in_force("off") == "off");
  for (const char* const sync : {"none", "adpsgd", "partial-reduce", "hetpipe"}) {
    job.run.sync = sync;
    CAPTURE(sync);
    CHECK(in_force("auto") == "off");
  }
  job.run.sync = "all-reduce";
  job.run.cache = "memory";
  CHECK(in_force("auto") == "off");
}
