#include "runtime/launch/place.h"

#include <charconv>
#include <cstdlib>

#include "graph/error.h"

namespace pipewright {
namespace {

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

struct Source {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
};
constexpr Source kSources[] = {
    {"environment (torchrun)", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
};

// "node[03-05,9],other" begins with node03.
std::string first_slurm_host(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

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
          "give both, or neither (then RANK and WORLD_SIZE, Slurm or Open MPI are asked)");
    }
    place.rank = *options.rank;
    place.world_size = *options.world_size;
    place.local_rank = number("LOCAL_RANK").value_or(place.rank);
    place.source = "options";
  } else {
    for (const Source& source : kSources) {
      const auto rank = number(source.rank);
      const auto world_size = number(source.world_size);
      if (!rank && !world_size) continue;
      if (!rank || !world_size) {
        // A shell inside a Slurm allocation has SLURM_NTASKS but no rank: that is one process.
        if (!rank && source.rank != kSources[0].rank) continue;
        throw InputError(std::string("environment variable ") + (rank ? source.world_size : source.rank) +
                             " is missing while " + (rank ? source.rank : source.world_size) + " is set",
                         "set both, or give --rank and --world-size");
      }
      place.rank = *rank;
      place.world_size = *world_size;
      place.local_rank = number(source.local_rank).value_or(place.rank);
      place.source = source.name;
      break;
    }
  }
  if (place.source == "Slurm") {
    place.job = variable("SLURM_JOB_ID").value_or("") + "." + variable("SLURM_STEP_ID").value_or("");
    const auto hosts = variable("SLURM_STEP_NODELIST");
    if (hosts && number("SLURM_STEP_NUM_NODES").value_or(1) > 1)
      place.master_address = first_slurm_host(*hosts);
  } else if (place.source == "Open MPI") {
    place.job = variable("PMIX_NAMESPACE").value_or(variable("OMPI_MCA_ess_base_jobid").value_or(""));
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
