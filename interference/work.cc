#include "interference/work.h"

#include <unordered_set>

namespace pipewright {

double work_bytes_per_second(const Profile& profile, const std::vector<std::string>& nodes) {
  const std::unordered_set<std::string> wanted(nodes.begin(), nodes.end());
  double bytes = 0, seconds = 0;
  for (const ProfiledNode& node : profile.nodes) {
    if (!wanted.contains(node.name)) continue;
    bytes += static_cast<double>(node.parameter_bytes + node.saved_bytes);
    for (const ProfiledValue& output : node.outputs) bytes += static_cast<double>(output.bytes);
    seconds += node.compute_seconds();
  }
  return seconds > 0 ? bytes / seconds : 0;
}

std::vector<std::vector<std::string>> stretches_of_work(const Profile& profile, int64_t count) {
  const double each = profile.compute_seconds() / static_cast<double>(count);
  std::vector<std::vector<std::string>> stretches;
  double before = 0;
  size_t last = 0;
  for (const ProfiledNode& node : profile.nodes) {
    // By the middle of the node's time.
    const double middle = before + node.compute_seconds() / 2;
    const size_t at = each > 0 ? static_cast<size_t>(middle / each) : 0;
    if (stretches.empty() || at > last) {
      stretches.emplace_back();
      last = at;
    }
    stretches.back().push_back(node.name);
    before += node.compute_seconds();
  }
  return stretches;
}

}  // namespace pipewright
