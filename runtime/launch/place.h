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
  int64_t local_ranks = 0;  ///< of this host, as the launcher says; 0 = it does not
  std::string master_address = "127.0.0.1";
  int64_t master_port = 29500;
  std::string job;  ///< tells jobs of one scheduler apart that use one address; "" = nothing known
  bool store_is_served = false;  ///< by a launcher; otherwise rank 0 serves it
  bool launched = false;         ///< by a launcher of ours, which has said how many ranks there are
  std::string secret;            ///< PIPEWRIGHT_JOB_SECRET: what only the ranks of the job know; "" = none
  std::string source;            ///< "options", "environment (torchrun)", "Slurm", "MPICH" ..., "one process"
};

/// First found: options; RANK WORLD_SIZE LOCAL_RANK; what an MPI's launcher sets (Open MPI, MVAPICH, MPICH
/// and Intel MPI, Cray PALS, jsrun); SLURM_PROCID ... of a step that srun started; else one process. An MPI's
/// launcher comes before Slurm: on several hosts srun starts its daemons, whose numbers the ranks inherit.
/// MASTER_ADDR and MASTER_PORT are read in every case but options that give them; otherwise the port follows
/// from the number of the job, and Slurm's first host is the address. InputError: half a place (a rank
/// without a world size), a rank outside the world, no number, ranks on several hosts and no address.
Place find_place(const PlaceOptions& options);

/// The first name that `scontrol show hostnames` prints of a list as Slurm writes it:
/// "rack[1-2]n[03,7]-ib,other" begins with rack1n03-ib. InputError, which names `variable`, if it is none.
std::string first_slurm_host(const std::string& list, const std::string& variable);

}  // namespace pipewright
