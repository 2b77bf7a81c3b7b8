#include "runtime/launch/place.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "graph/error.h"
#include "tests/support/error_of.h"

using namespace pipewright;

namespace {
// Sets variables for one test and takes all that matter away again.
struct Environment {
  explicit Environment(const std::map<std::string, std::string>& values) {
    clear();
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() { clear(); }
  static void clear() {
    std::vector<std::string> names;
    for (char** entry = environ; *entry; ++entry) names.emplace_back(*entry, std::strcspn(*entry, "="));
    for (const std::string& name : names) {
      for (const char* prefix : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_", "SLURM_",
                                 "PMI", "OMPI_", "MV2_", "JSM_", "PALS_", "MPI_", "PBS_", "LSB_"})
        if (name.rfind(prefix, 0) == 0) ::unsetenv(name.c_str());
    }
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

TEST_CASE("place: options before torchrun before an MPI's launcher before Slurm") {
  std::map<std::string, std::string> all = {{"RANK", "1"},
                                            {"WORLD_SIZE", "4"},
                                            {"LOCAL_RANK", "0"},
                                            {"MASTER_ADDR", "node7"},
                                            {"MASTER_PORT", "1234"},
                                            {"SLURM_PROCID", "2"},
                                            {"SLURM_NTASKS", "8"},
                                            {"SLURM_STEP_ID", "0"},
                                            {"OMPI_COMM_WORLD_RANK", "3"},
                                            {"OMPI_COMM_WORLD_SIZE", "16"},
                                            {"PMIX_RANK", "3"}};
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
    // mpirun on several hosts of Slurm's: srun has started its daemons, and PROCID is theirs.
    const Environment environment(all);
    CHECK(find_place({}).source == "Open MPI");
    CHECK(find_place({}).rank == 3);
  }
  all.erase("OMPI_COMM_WORLD_RANK");
  {
    const Environment environment(all);
    CHECK(find_place({}).source == "Slurm");
    CHECK(find_place({}).world_size == 8);
  }
}

TEST_CASE("place: each MPI's launcher is seen, its rank on the host too") {
  struct Launcher {
    std::string source, rank, size, local_rank;
  };
  for (const Launcher& launcher : std::vector<Launcher>{
           {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
           {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
           {"MPICH", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"},
           {"Cray PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID"},
           {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
           {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"}}) {
    CAPTURE(launcher.source);
    std::map<std::string, std::string> variables = {
        {launcher.rank, "5"}, {launcher.size, "8"}, {launcher.local_rank, "1"}, {"PMIX_RANK", "5"}};
    {
      const Environment environment(variables);
      const Place place = find_place({});
      CHECK(place.source == launcher.source);
      CHECK(place.rank == 5);
      CHECK(place.world_size == 8);
      CHECK(place.local_rank == 1);
      CHECK(place.master_address == "127.0.0.1");
    }
    variables.erase(launcher.size);
    const Environment environment(variables);
    CHECK_THAT(pipewright::testing::error_of<InputError>([] { find_place({}); }),
               Catch::Contains("environment variable " + launcher.rank + " is set (5) while " +
                               launcher.size + " is missing"));
  }
}

TEST_CASE("place: a rank without any size is refused and not taken for one process") {
  const Environment environment(std::map<std::string, std::string>{{"PMIX_RANK", "1"}});
  try {
    find_place({});
    FAIL("a place");
  } catch (const InputError& error) {
    CHECK_THAT(error.what(), Catch::Contains("PMIX_RANK is set (1), and nothing says how many ranks"));
    CHECK_THAT(error.remedy(), Catch::Contains("set RANK and WORLD_SIZE"));
  }
}

TEST_CASE("place: ranks on several hosts need an address") {
  for (const std::map<std::string, std::string>& variables : std::vector<std::map<std::string, std::string>>{
           {{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}},
           {{"OMPI_COMM_WORLD_RANK", "0"},
            {"OMPI_COMM_WORLD_SIZE", "4"},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
           {{"SLURM_PROCID", "0"},
            {"SLURM_NTASKS", "4"},
            {"SLURM_STEP_ID", "0"},
            {"SLURM_STEP_NUM_NODES", "2"}}}) {
    auto given = variables;
    {
      const Environment environment(given);
      CHECK_THAT(pipewright::testing::error_of<InputError>([] { find_place({}); }),
                 Catch::Contains("on several hosts") && Catch::Contains("where rank 0 is"));
    }
    given["MASTER_ADDR"] = "node7";
    const Environment environment(given);
    CHECK(find_place({}).master_address == "node7");
  }
}

TEST_CASE("place: under Slurm only a step of srun has ranks") {
  std::map<std::string, std::string> batch = {
      {"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "4"}};
  for (const std::string step : {"", "batch", "4294967291", "4294967290"}) {
    if (!step.empty()) batch["SLURM_STEP_ID"] = step;
    const Environment environment(batch);
    CHECK(find_place({}).source == "one process");
    CHECK(find_place({}).world_size == 1);
  }
  batch["SLURM_STEP_ID"] = "3";
  batch["SLURM_STEP_NUM_TASKS"] = "2";  // srun --ntasks 2 within the four
  {
    const Environment environment(batch);
    CHECK(find_place({}).source == "Slurm");
    CHECK(find_place({}).world_size == 2);
  }
  // srun --mpi=pmi2 says both, and Slurm's step knows the hosts.
  batch.insert({{"PMI_RANK", "0"},
                {"PMI_SIZE", "2"},
                {"SLURM_STEP_NUM_NODES", "2"},
                {"SLURM_STEP_NODELIST", "b[1-2]"}});
  const Environment environment(batch);
  CHECK(find_place({}).source == "Slurm");
  CHECK(find_place({}).master_address == "b1");
}

// As `scontrol show hostnames` prints them.
TEST_CASE("place: the first of Slurm's hosts, however its names are written") {
  for (const auto& [list, first] :
       std::map<std::string, std::string>{{"node7", "node7"},
                                          {"node7,other", "node7"},
                                          {"node[03-05,9],other", "node03"},
                                          {"node[9,03-05]", "node9"},
                                          {"cn[01-02]-ib", "cn01-ib"},
                                          {"cn[5]", "cn5"},
                                          {"node[1-2].cluster.local", "node1.cluster.local"},
                                          {"rack[1-2]n[3-4]", "rack1n3"},
                                          {"r[1,3]-c[004-010,12]-b[7]x,y[1-2]", "r1-c004-b7x"},
                                          {"a-b-[1-2]", "a-b-1"},
                                          {"single-1,n[1-2]", "single-1"},
                                          {"[01-02]", "01"}}) {
    CHECK(first_slurm_host(list, "X") == first);
  }
  for (const std::string list : {"", ",a", "cn[01-02", "cn[]", "cn]1"}) {
    CHECK_THAT(pipewright::testing::error_of<InputError>([&] { first_slurm_host(list, "SLURM_X"); }),
               Catch::Contains("SLURM_X: '" + list + "' is no list of hosts"));
  }
}

TEST_CASE("place: jobs of a scheduler get ports of their own, the same on every rank") {
  const auto slurm = [](const std::string& rank, const std::string& job) {
    const Environment environment(
        {{"SLURM_PROCID", rank}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", "0"}});
    return find_place({});
  };
  CHECK(slurm("0", "17").master_port == slurm("1", "17").master_port);
  CHECK(slurm("0", "17").master_port != slurm("0", "18").master_port);
  CHECK(slurm("0", "17").job != slurm("0", "18").job);
  const Environment environment({{"SLURM_PROCID", "0"},
                                 {"SLURM_NTASKS", "2"},
                                 {"SLURM_JOB_ID", "17"},
                                 {"SLURM_STEP_ID", "0"},
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

TEST_CASE("place: how many ranks this host has, where the launcher says it") {
  std::map<std::string, std::string> torchrun = {
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}};
  {
    const Environment environment(torchrun);
    CHECK(find_place({}).local_ranks == 0);
  }
  torchrun["LOCAL_WORLD_SIZE"] = "2";
  {
    const Environment environment(torchrun);
    CHECK(find_place({}).local_ranks == 2);
  }
  const Environment environment(
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  CHECK(find_place({}).local_ranks == 4);
}
