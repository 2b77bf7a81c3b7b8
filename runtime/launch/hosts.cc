#include "runtime/launch/hosts.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "graph/document.h"
#include "graph/error.h"

namespace pipewright {

std::vector<HostSlots> read_hosts(const std::string& file) {
  std::istringstream lines(read_file(file));
  std::vector<HostSlots> hosts;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string host, slots, more;
    if (!(words >> host)) continue;
    const std::string where = file + ":" + std::to_string(number) + ": ";
    int64_t count = 1;
    if (words >> slots) {
      const std::string prefix = "slots=";
      const char* begin = slots.data() + std::min(slots.size(), prefix.size());
      const char* end = slots.data() + slots.size();
      if (slots.rfind(prefix, 0) != 0 || std::from_chars(begin, end, count).ptr != end || count < 1 ||
          begin == end || words >> more) {
        throw InputError(where + "'" + line + "': expected HOST, or HOST slots=N with N at least 1");
      }
    }
    if (host[0] == '-') throw InputError(where + "'" + host + "' is no name of a host");
    if (std::any_of(hosts.begin(), hosts.end(), [&](const HostSlots& each) { return each.host == host; })) {
      throw InputError(where + "host '" + host + "' is there twice", "give it once, with slots=N");
    }
    hosts.push_back({host, count});
  }
  return hosts;
}

std::vector<HostPlace> place_ranks_on_hosts(const std::string& file, int64_t ranks) {
  std::vector<HostPlace> places;
  for (const auto& [host, slots] : read_hosts(file)) {
    const int64_t here = std::min(slots, ranks - static_cast<int64_t>(places.size()));
    for (int64_t i = 0; i < here; ++i) places.push_back({host, i, here});
  }
  if (static_cast<int64_t>(places.size()) < ranks) {
    throw InputError(
        file + ": " + std::to_string(places.size()) + " slots for " + std::to_string(ranks) + " ranks",
        "add hosts, or slots=N behind a host's name");
  }
  return places;
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

}  // namespace pipewright
