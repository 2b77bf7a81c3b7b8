// What --print-config prints of all three programs.
#pragma once

#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/text_table.h"

namespace pipewright {

/// A setting as it is used.
struct Setting {
  std::string name;    ///< the option's
  std::string value;   ///< as one would write it; of settings_json(), JSON where it is that
  std::string source;  ///< "default", "command line", a file
};

TextTable settings_table(const std::vector<Setting>& settings);
/// With --json: a list of objects with the keys "setting", "value" and "from".
Json settings_json(const std::vector<Setting>& settings);

}  // namespace pipewright
