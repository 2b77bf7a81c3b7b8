#include "runtime/commands/batches_command.h"

#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "graph/units.h"
#include "runtime/commands/resume_settings.h"
#include "runtime/commands/run_options.h"
#include "runtime/generation/minibatch_file.h"

namespace pipewright {

namespace po = boost::program_options;

void run_batches(const std::vector<std::string>& arguments) {
  po::options_description description;
  description.add(run_option_descriptions());
  constexpr const char* kUsage =
      "pipewright-runtime batches --config run.json --output FILE.safetensors [--minibatches N]";
  const po::variables_map options =
      parse_options(arguments, description,
                    {kUsage,
                     "pipewright-runtime batches --model convnet --data synthetic-images:image=28 "
                     "--minibatches 4 --output batches.safetensors",
                     {"config", "model", "data", "batch-size", "minibatches", "output"}});
  const std::string file = options.count("output") ? options["output"].as<std::string>() : "";
  if (!file.ends_with(".safetensors"))
    throw InputError("batches: " + (file.empty() ? "--output is missing" : "--output " + file) +
                         ": expected a file that ends with .safetensors",
                     kUsage);
  Run run = resumed_run(options).run;
  // How it is trained is not asked, and the plan's file may have gone.
  run.plan.clear();
  run.emulate = false;
  run.adapt = run.cache = "none";
  run.sync = "all-reduce";
  run.world_size = 0;
  const Job job = prepare_job(run, 1);
  const TrainingData data(job);
  const WrittenFile written = write_minibatches(file, job, data);
  std::cout << file << ": minibatches " << data.first_minibatch() << " to " << data.length().minibatches - 1
            << " of " << run.batch_size << " samples, " << format_bytes(written.bytes) << "\n";
}

}  // namespace pipewright
