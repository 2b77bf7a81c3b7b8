// Values of command-line options: numbers, lists, pairs. All that do not fit are InputErrors that name the
// option.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

/// Was it said, or is it its default?
bool given(const boost::program_options::variables_map& values, const std::string& name);
/// "default" or "command line".
std::string source_of(const boost::program_options::variables_map& values, const std::string& name);

double positive(double value, const std::string& option);
/// Split at `separator`: at least one part, which may be empty.
std::vector<std::string> list_of(const std::string& text, char separator = ',');
int64_t whole_number(const std::string& text, const std::string& option, int64_t low, int64_t high);
/// "LEFT:NUMBER", split at the last separator; `example` is what the message expects.
std::pair<std::string, int64_t> pair_of(const std::string& text, char separator, const std::string& option,
                                        const std::string& example, int64_t low, int64_t high);
bool yes_or_no(const std::string& option, const std::string& text);

}  // namespace pipewright
