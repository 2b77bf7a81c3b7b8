#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

#include "graph/error.h"
#include "runtime/launch/place.h"

using namespace pipewright;

namespace {
// Sets variables for one test and takes all that matter away again.
struct Environment {
  static constexpr const char* kNames[] = {
      "RANK",           "WORLD_SIZE",           "LOCAL_RANK",           "MASTER_ADDR",
      "MASTER_PORT",    "SLURM_PROCID",         "SLURM_NTASKS",         "SLURM_LOCALID",
      "SLURM_JOB_ID",   "SLURM_STEP_ID",        "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
      "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"};
  explicit Environment(const std::map<std::string, std::string>& values) {
    clear();
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() { clear(); }
  static void clear() {
    for (const char* name : kNames) ::unsetenv(name);
  }
};
}  // namespace

TEST_CASE("place: one process when nothing is said") {
  const Environment environment({});
  const Place place = find_place({});
  CHECK(place.world_size == 1);
  CHECK(place.rank == 0);
  CHECK(place.source == "one process");
}

TEST_CASE("place: options before torchrun before Slurm before Open MPI") {
  std::map<std::string, std::string> all = {{"RANK", "1"},
                                            {"WORLD_SIZE", "4"},
                                            {"LOCAL_RANK", "0"},
                                            {"MASTER_ADDR", "node7"},
                                            {"MASTER_PORT", "1234"},
                                            {"SLURM_PROCID", "2"},
                                            {"SLURM_NTASKS", "8"},
                                            {"OMPI_COMM_WORLD_RANK", "3"},
                                            {"OMPI_COMM_WORLD_SIZE", "16"}};
  {
    const Environment environment(all);
    PlaceOptions options;
    options.rank = 5;
    options.world_size = 6;
    CHECK(find_place(options).rank == 5);
    CHECK(find_place({}).rank == 1);
    CHECK(find_place({}).master_address == "node7");
    CHECK(find_place({}).master_port == 1234);
  }
  all.erase("RANK");
  all.erase("WORLD_SIZE");
  {
    const Environment environment(all);
    CHECK(find_place({}).source == "Slurm");
    CHECK(find_place({}).world_size == 8);
  }
  all.erase("SLURM_PROCID");  // a shell inside an allocation: not a rank
  {
    const Environment environment(all);
    CHECK(find_place({}).source == "Open MPI");
    CHECK(find_place({}).rank == 3);
  }
}

TEST_CASE("place: jobs of a scheduler get ports of their own, the same on every rank") {
  const auto slurm = [](const std::string& rank, const std::string& job) {
    const Environment environment({{"SLURM_PROCID", rank}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", job}});
    return find_place({});
  };
  CHECK(slurm("0", "17").master_port == slurm("1", "17").master_port);
  CHECK(slurm("0", "17").master_port != slurm("0", "18").master_port);
  CHECK(slurm("0", "17").job != slurm("0", "18").job);
  const Environment environment({{"SLURM_PROCID", "0"},
                                 {"SLURM_NTASKS", "2"},
                                 {"SLURM_JOB_ID", "17"},
                                 {"MASTER_PORT", "4000"},
                                 {"SLURM_STEP_NUM_NODES", "2"},
                                 {"SLURM_STEP_NODELIST", "node[03-05,9],other"}});
  CHECK(find_place({}).master_port == 4000);
  CHECK(find_place({}).master_address == "node03");
}

TEST_CASE("place: half a place, a rank outside the world and no numbers are errors") {
  const auto bad =
      GENERATE(values<std::map<std::string, std::string>>({{{"RANK", "1"}},
                                                           {{"WORLD_SIZE", "2"}},
                                                           {{"RANK", "2"}, {"WORLD_SIZE", "2"}},
                                                           {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
                                                           {{"RANK", "one"}, {"WORLD_SIZE", "2"}},
                                                           {{"MASTER_PORT", "70000"}}}));
  const Environment environment(bad);
  CHECK_THROWS_AS(find_place({}), InputError);
}
