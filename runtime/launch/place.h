// Where a process stands in the world of ranks, and how it meets the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pipewright {

/// What --rank, --world-size, --master-addr and --master-port say; absent = not given.
struct PlaceOptions {
  std::optional<int64_t> rank;
  std::optional<int64_t> world_size;
  std::optional<std::string> master_address;
  std::optional<int64_t> master_port;
};

struct Place {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  std::string master_address = "127.0.0.1";
  int64_t master_port = 29500;
  std::string job;  ///< tells jobs of one scheduler apart that use one address; "" = nothing known
  bool store_is_served = false;  ///< by a launcher; otherwise rank 0 serves it
  bool launched = false;         ///< by a launcher of ours, which has said how many ranks there are
  std::string secret;            ///< PIPEWRIGHT_JOB_SECRET: what only the ranks of the job know; "" = none
  std::string source;            ///< "options", "environment (torchrun)", "Slurm", "Open MPI", "one process"
};

/// First found: options; RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT; SLURM_PROCID SLURM_NTASKS
/// SLURM_LOCALID; OMPI_COMM_WORLD_RANK ...; else one process. MASTER_ADDR and MASTER_PORT are read in every
/// case but options that give them; under Slurm and Open MPI the port's default follows from the number of
/// the job, and Slurm's first host is the default address. InputError: half a place (a rank without a world
/// size), a rank outside the world, no number.
Place find_place(const PlaceOptions& options);

}  // namespace pipewright
