#include "optimizer/commands/option_values.h"

#include <charconv>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {

namespace po = boost::program_options;

std::string source_of(const po::variables_map& values, const std::string& name) {
  return values[name].defaulted() ? "default" : "command line";
}

bool given(const po::variables_map& values, const std::string& name) {
  return values.count(name) != 0 && !values[name].defaulted();
}

double positive(double value, const std::string& option) {
  if (value > 0) return value;
  throw InputError("--" + option + ": got " + std::to_string(value) + "; expected more than 0");
}

std::vector<std::string> list_of(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

int64_t whole_number(const std::string& text, const std::string& option, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || value < low || value > high) {
    throw InputError("--" + option + ": got " + in_quotes(text) + "; expected a whole number in " +
                     std::to_string(low) + ".." + std::to_string(high));
  }
  return value;
}

std::pair<std::string, int64_t> pair_of(const std::string& text, char separator, const std::string& option,
                                        const std::string& example, int64_t low, int64_t high) {
  const size_t at = text.rfind(separator);
  if (at == std::string::npos || at == 0) {
    throw InputError("--" + option + ": got " + in_quotes(text) + "; expected " + example);
  }
  return {text.substr(0, at), whole_number(text.substr(at + 1), option, low, high)};
}

bool yes_or_no(const std::string& option, const std::string& text) {
  if (text == "yes" || text == "no") return text == "yes";
  throw InputError("--" + option + ": got " + in_quotes(text) + "; expected yes or no for each level");
}

}  // namespace pipewright
