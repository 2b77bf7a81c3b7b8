// Finished runs side by side.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/run.h"
#include "graph/summary.h"
#include "graph/text_table.h"
#include "runtime/journal/loss_curves.h"

namespace pipewright {

struct FinishedRun {
  std::string name;
  std::filesystem::path folder;
  Summary summary;
  Plan plan;  ///< the last one
  Run settings;

  /// More ranks than cores: its times say nothing about the plan.
  bool crowded() const { return summary.ranks_share_cores(); }
};
/// InputError for a folder that holds no finished run.
FinishedRun finished_run(const std::filesystem::path& folder);

/// "The run failed: rank 1 was killed ..." of one that was not done; "" of one that was.
std::string end_text(const FinishedRun& run);

/// "150 minibatches"; of a run that went on from another "50 minibatches, from minibatch 100 on,".
std::string trained_text(const Summary& summary);

/// Why nothing is predicted of a run whose plan was changed by hand; else "".
std::string no_prediction_text(const FinishedRun& run);

/// The name of each run's folder; where several have one name, the whole path. InputError for a folder that
/// is given twice.
std::vector<std::string> run_names(const std::vector<std::filesystem::path>& folders);

/// read_curves() of each.
std::vector<RunCurves> curves_of(const std::vector<FinishedRun>& runs);

/// A table under what it shows, or a sentence alone.
struct ReportPart {
  std::string text;
  std::optional<TextTable> table = {};
};
/// First a table of one row a run, the first being what speed-ups refer to: throughput over wall time, loss,
/// accuracy, steady against predicted time, peak memory of the largest rank against its prediction, bytes
/// sent a minibatch; then why a run failed or was interrupted, how true each prediction was, and what else
/// there is of these runs: their plans, epochs, caches, how far the losses of each are from the first one's,
/// the memory of each rank by purpose. Times of runs that had fewer cores than ranks are in brackets, with a
/// sentence that says so.
/// `curves`: curves_of() of several runs; one run's are not asked for.
std::vector<ReportPart> report_parts(const std::vector<FinishedRun>& runs,
                                     const std::vector<RunCurves>& curves);

/// The parts as Markdown.
std::string run_report(const std::vector<FinishedRun>& runs);

}  // namespace pipewright
