#include "runtime/launch/place.h"

#include <charconv>
#include <cstdlib>
#include <vector>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr const char* kSlurm = "Slurm";
constexpr const char* kTorchrunLocalSize = "LOCAL_WORLD_SIZE";

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<int64_t> number(const char* name) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw InputError(std::string("environment variable ") + name + ": '" + *text + "' is no number",
                     std::string("unset ") + name + ", or give --rank and --world-size");
  }
  return value;
}

using Variables = std::vector<const char*>;  // the first that is set counts

struct Source {
  std::string name;
  const char* rank;
  Variables world_size;
  Variables local_rank;
  Variables local_size;  // ranks on this host
  Variables job;         // what is the job's alone
};

const std::vector<Source>& sources() {
  static const std::vector<Source> all = {
      {"environment (torchrun)", "RANK", {"WORLD_SIZE"}, {"LOCAL_RANK"}, {kTorchrunLocalSize}, {}},
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       {"OMPI_COMM_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"MVAPICH",
       "MV2_COMM_WORLD_RANK",
       {"MV2_COMM_WORLD_SIZE"},
       {"MV2_COMM_WORLD_LOCAL_RANK"},
       {"MV2_COMM_WORLD_LOCAL_SIZE"},
       {"PBS_JOBID", "LSB_JOBID", "SLURM_JOB_ID"}},
      {"jsrun",
       "JSM_NAMESPACE_RANK",
       {"JSM_NAMESPACE_SIZE"},
       {"JSM_NAMESPACE_LOCAL_RANK"},
       {"JSM_NAMESPACE_LOCAL_SIZE"},
       {"LSB_JOBID"}},
      {"Cray PALS",
       "PALS_RANKID",
       {"PMI_SIZE"},
       {"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"},
       {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"},
       {"PALS_APID", "PBS_JOBID"}},
      {"MPICH",
       "PMI_RANK",
       {"PMI_SIZE"},
       {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
       {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
       {"PBS_JOBID", "LSB_JOBID", "SLURM_JOB_ID"}},
      {kSlurm, "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, {}, {}},
      // Says no size: what has no name of its own above (PRRTE's prun) is refused, not taken for one process.
      {"PMIx", "PMIX_RANK", {}, {}, {}, {}}};
  return all;
}

const char* set_one(const Variables& names) {
  for (const char* name : names) {
    if (variable(name)) return name;
  }
  return nullptr;
}

std::optional<int64_t> number(const Variables& names) {
  const char* name = set_one(names);
  return name ? number(name) : std::nullopt;
}

// A batch script, and a shell inside an allocation, have a task's number or the number of tasks, but no step
// that srun started: they are one process.
bool is_step_of_srun() {
  const std::string step = variable("SLURM_STEP_ID").value_or("");
  constexpr uint64_t kFirstSpecial = 0xfffffff0;  // "batch", "extern", "interactive" as numbers
  uint64_t id = 0;
  const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), id);
  return error == std::errc() && end == step.data() + step.size() && id < kFirstSpecial;
}

bool is_set(const Source& source) {
  // Only torchrun's size means a job that lacks its ranks: others' is also set where no rank is meant.
  const bool torchrun = &source == &sources().front();
  if (torchrun && set_one(source.world_size)) return true;
  return variable(source.rank) && (source.name != kSlurm || is_step_of_srun());
}

// srun may set an MPI's variables too. Where both say the same it is Slurm that knows the hosts.
bool slurm_says_it_too(const Source& source) {
  for (const Source& slurm : sources()) {
    if (slurm.name != kSlurm || !is_set(slurm)) continue;
    return number(slurm.rank) == number(source.rank) && number(slurm.world_size) == number(source.world_size);
  }
  return false;
}

// The place that the first source in the environment says; nothing there: one process.
const Source* read_environment(Place& place) {
  const bool torchrun = is_set(sources().front());
  for (const Source& source : sources()) {
    if (!is_set(source)) continue;
    if (!torchrun && source.name != kSlurm && slurm_says_it_too(source)) continue;
    const auto rank = number(source.rank);
    const auto world_size = number(source.world_size);
    if (!rank || !world_size) {
      const std::string there = rank ? source.rank : set_one(source.world_size);
      const std::string missing = !rank                       ? source.rank
                                  : source.world_size.empty() ? ""
                                                              : source.world_size.front();
      throw InputError("environment variable " + there + " is set" +
                           (rank ? " (" + std::to_string(*rank) + ")" : "") +
                           (missing.empty() ? ", and nothing says how many ranks there are"
                                            : " while " + missing + " is missing"),
                       "set RANK and WORLD_SIZE for each process, or give --rank and --world-size; for one "
                       "process unset " +
                           there);
    }
    place.rank = *rank;
    place.world_size = *world_size;
    place.local_rank = number(source.local_rank).value_or(place.rank);
    place.local_ranks = number(source.local_size).value_or(0);
    place.source = source.name;
    return &source;
  }
  return nullptr;
}

// Where the ranks are on several hosts the loopback address is nobody's.
void demand_address(const Place& place, const Source& source) {
  const auto here = number(source.local_size);
  const auto hosts = source.name == kSlurm ? number("SLURM_STEP_NUM_NODES") : std::nullopt;
  if ((!here || *here >= place.world_size) && hosts.value_or(1) < 2) return;
  const std::string why = hosts
                              ? "SLURM_STEP_NUM_NODES=" + std::to_string(*hosts) + ", no SLURM_STEP_NODELIST"
                              : std::string(set_one(source.local_size)) + "=" + std::to_string(*here) +
                                    " of " + std::to_string(place.world_size);
  throw InputError(
      source.name + " has started ranks on several hosts (" + why + "), and nothing says where rank 0 is",
      "set MASTER_ADDR, the same for all ranks, to the host of rank 0, or give --master-addr");
}

}  // namespace

std::string first_slurm_host(const std::string& list, const std::string& variable) {
  std::string host;
  size_t at = 0;
  while (at < list.size() && list[at] != ',') {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const size_t end = list.find(']', at);
    const size_t first_end = list.find_first_of("-,]", at);
    if (end == std::string::npos || first_end == at + 1) {
      host.clear();
      break;
    }
    host += list.substr(at + 1, first_end - at - 1);
    at = end + 1;
  }
  if (host.empty() || host.find(']') != std::string::npos)
    throw InputError("environment variable " + variable + ": '" + list + "' is no list of hosts",
                     "set MASTER_ADDR, the same for all ranks, to the host of rank 0, or give --master-addr");
  return host;
}

namespace {

// Below the ports that systems give away by themselves. The same on every host, by FNV-1a.
int64_t port_of_job(const std::string& job) {
  uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 15000 + static_cast<int64_t>(hash % 15000);
}

}  // namespace

Place find_place(const PlaceOptions& options) {
  Place place;
  place.source = "one process";
  if (options.rank || options.world_size) {
    if (!options.rank || !options.world_size) {
      throw InputError(
          options.rank ? "--rank is given without --world-size" : "--world-size is given without --rank",
          "give both, or neither (then RANK and WORLD_SIZE, MPI's launchers and Slurm are asked)");
    }
    place.rank = *options.rank;
    place.world_size = *options.world_size;
    place.local_rank = number("LOCAL_RANK").value_or(place.rank);
    place.local_ranks = number(kTorchrunLocalSize).value_or(0);
    place.source = "options";
  } else if (const Source* source = read_environment(place)) {
    const auto hosts = variable("SLURM_STEP_NODELIST");
    const bool slurm = source->name == kSlurm;
    const bool has_address = options.master_address || variable("MASTER_ADDR");
    if (slurm) place.job = variable("SLURM_JOB_ID").value_or("") + "." + *variable("SLURM_STEP_ID");
    if (!slurm && set_one(source->job)) place.job = *variable(set_one(source->job));
    if (!has_address && slurm && hosts && number("SLURM_STEP_NUM_NODES").value_or(1) > 1) {
      place.master_address = first_slurm_host(*hosts, "SLURM_STEP_NODELIST");
    } else if (!has_address) {
      demand_address(place, *source);
    }
  }
  if (!place.job.empty()) place.master_port = port_of_job(place.job);
  place.master_address =
      options.master_address.value_or(variable("MASTER_ADDR").value_or(place.master_address));
  place.master_port = options.master_port.value_or(number("MASTER_PORT").value_or(place.master_port));
  place.launched = variable("PIPEWRIGHT_STORE_IS_SERVED").has_value();
  place.store_is_served =
      !options.master_port && (place.launched || variable("TORCHELASTIC_USE_AGENT_STORE") == "True");
  place.secret = variable("PIPEWRIGHT_JOB_SECRET").value_or("");
  if (place.world_size < 1 || place.rank < 0 || place.rank >= place.world_size) {
    throw InputError("rank " + std::to_string(place.rank) + " of " + std::to_string(place.world_size) +
                         " (from " + place.source + ") is not in 0.." + std::to_string(place.world_size - 1),
                     "ranks count from 0");
  }
  if (place.master_port < 1 || place.master_port > 65535) {
    throw InputError("master port " + std::to_string(place.master_port) + " is not in 1..65535");
  }
  return place;
}

}  // namespace pipewright
