// The options of commands that start ranks.
#pragma once

#include <boost/program_options.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/launch.h"

namespace pipewright {

/// --ranks, --no-pin, --hosts, --rsh, --master-addr.
boost::program_options::options_description launch_option_descriptions();
/// All but the ranks. InputError for options that do not go together.
LaunchSettings launch_settings_from(const boost::program_options::variables_map& options);
/// --ranks, at least `least`.
std::optional<int64_t> ranks_from(const boost::program_options::variables_map& options, int64_t least = 1);
/// --hosts and --rsh alone, for commands that ask hosts and start no ranks.
void add_host_options(boost::program_options::options_description* description);
/// What --rsh says, or its default. InputError if it is empty, or there without --hosts.
std::string remote_shell_from(const boost::program_options::variables_map& options);
/// The words of a command line but for these options: what each rank is given.
std::vector<std::string> without_launch_options(const std::vector<std::string>& words);

/// A run folder that nobody needs once its job has gone well: made in the system's folder for temporary
/// files. It goes with this object, but stays after an error if the ranks have written into it; not after a
/// signal.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& command);
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace pipewright
