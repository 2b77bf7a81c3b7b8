// --resume: what was trained goes on as it was, where nothing else is said.
#pragma once

#include <boost/program_options.hpp>
#include <optional>
#include <string>

#include "runtime/checkpoint/kept_state.h"
#include "runtime/commands/run_options.h"

namespace pipewright {

struct ResumedRun {
  Run run;
  std::optional<RunBase> base;  ///< of a run that goes on from a checkpoint

  /// "--momentum 0.9, --epochs 3": what the checkpoint has set and nobody has said again; may be empty.
  std::string taken(const boost::program_options::variables_map& options) const;
};

/// The run of the options and the document of --config. If it names a checkpoint that is there, that
/// checkpoint's run stands under both: model, data, how long, optimizer and all else that changes what is
/// computed. Not the plan, the run folder, the first weights, and how a rank computes (device, threads,
/// transport, times to wait, what becomes of lost ranks): those are of the machine, or of this start. Where
/// epochs are given, a number of minibatches of the checkpoint no longer counts. InputError of find_resume
/// for a checkpoint that is bad.
ResumedRun resumed_run(const boost::program_options::variables_map& options);

/// Where the options go on from the latest checkpoint: what a run whose launcher was killed has kept in
/// memory becomes that one (adopt_kept_state()). Before resumed_run(), by the launcher, or by a rank 0 that
/// has none.
void adopt_before_resume(const boost::program_options::variables_map& options, const OnHost& on_host = {});

}  // namespace pipewright
