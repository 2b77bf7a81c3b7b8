// `report`: what finished runs did.
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// `report RUN_FOLDER ...`: prints run_report() of the folders, or with --output writes run_page(); --csv and
/// --tensorboard write their numbers (metrics_export.h). InputError if no folder is given or one holds no
/// finished run.
void run_report_command(const std::vector<std::string>& arguments);

}  // namespace pipewright
