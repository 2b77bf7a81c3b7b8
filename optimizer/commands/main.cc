#include <malloc.h>

#include <string>

#include "graph/command_line.h"
#include "optimizer/commands/commands.h"

int main(int argc, char** argv) {
  using namespace pipewright;
#ifdef __GLIBC__
  // Each simulation takes megabytes and gives them back: without this the kernel clears them each time, which
  // takes as long as the simulation.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  const ProgramDescription program = {
      "pipewright-optimizer",
      "plans which stage runs which layers on which ranks, from a profile.",
      "pipewright-optimizer --profile profile.json --gpus 4 --bandwidths 10Gbit/s --memory 16GiB --output "
      "plans",
      {
          {"plan", "the best plan for the devices given", run_plan},
          {"compare", "one device, data parallel, model parallel, straight and hybrid side by side",
           run_compare},
          {"check", "is a plan whole, free of deadlock, within memory?", run_check},
          {"evaluate", "price a plan again, independently of the search", run_evaluate},
          {"simulate", "play a plan in time: waits, bubbles, peaks of each rank", run_simulate},
          {"show", "a plan as table and timeline", run_show},
          {"calibrate", "fit prices to what real runs took, into a topology", run_calibrate},
          {"validate", "predict runs that others measured and published", run_validate},
          {"convert", "PipeDream's graph.txt and configuration to profile and plan, and back", run_convert},
      },
      [] { return std::string(); },
  };
  return run_program(program, argc, argv);
}
