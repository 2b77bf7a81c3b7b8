#include "graph/device_name.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"

namespace pipewright {

DeviceName device_name(const std::string& text, const std::string& where) {
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  if (kind != "cpu" && kind != "cuda") {
    throw InputError(where + ": " + in_quotes(text) + " is no device; expected cpu, cuda or cuda:K" +
                     suggestion(kind, {"cpu", "cuda"}));
  }
  DeviceName name;
  name.cuda = kind == "cuda";
  if (colon == std::string::npos) return name;
  if (!name.cuda) throw InputError(where + ": " + in_quotes(text) + " has a number; the CPU is 'cpu'");
  const std::string number = text.substr(colon + 1);
  const bool digits = !number.empty() &&
                      std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || number.size() > 3)
    throw InputError(where + ": " + in_quotes(text) +
                     " is no device; expected a number behind 'cuda:', such as cuda:0");
  name.index = std::stoll(number);
  return name;
}

}  // namespace pipewright
