// The runtime's command line: every key of the run document as an option, over a document, over the defaults.
#pragma once

#include <boost/program_options.hpp>
#include <optional>
#include <string>
#include <vector>

#include "graph/run.h"
#include "graph/settings.h"
#include "runtime/launch/place.h"

namespace pipewright {

/// What stands under the document and the options, instead of the defaults.
struct RunBase {
  Run run;
  std::string from;  ///< for people: "checkpoint runs/a/checkpoints/minibatch-100"
};

/// --config and one option per key of the run document, but `world_size`: that is --world-size of one rank
/// and
/// --ranks of who starts all of them.
boost::program_options::options_description run_option_descriptions();
/// Defaults (or `base`), then the document of --config, then the options given. InputError as for a document
/// that says the same.
Run run_from_options(const boost::program_options::variables_map& options,
                     const std::optional<Run>& base = std::nullopt);
/// Does an option, or the document of --config, say what this option is?
bool is_said(const boost::program_options::variables_map& options, const std::string& option);
/// Values are JSON; sources "default", the run document's file, "option", or where the base is from.
std::vector<Setting> settings_of(const boost::program_options::variables_map& options, const Run& run,
                                 const std::optional<RunBase>& base = std::nullopt);

/// --rank, --world-size, --master-addr, --master-port.
boost::program_options::options_description place_option_descriptions();
PlaceOptions place_options(const boost::program_options::variables_map& options);

}  // namespace pipewright
