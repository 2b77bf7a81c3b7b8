// Options of the profiler's commands, checked.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <filesystem>
#include <string>

namespace pipewright {

/// InputError with the remedy where it was not given.
std::string required_option(const boost::program_options::variables_map& options, const std::string& name,
                            const std::string& remedy);
/// InputError outside minimum..maximum.
int64_t integer_option(const boost::program_options::variables_map& options, const std::string& name,
                       int64_t minimum, int64_t maximum);
/// Found out before minutes of work, not after: can `file` be written? InputError that names `option`.
void check_writable(const std::filesystem::path& file, const std::string& option);
/// All settings and where they come from, on standard output; with --json as JSON.
void print_config(const boost::program_options::variables_map& options,
                  const boost::program_options::options_description& description);

}  // namespace pipewright
