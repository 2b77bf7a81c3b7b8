#include "optimizer/cost/tied.h"

#include <algorithm>

namespace pipewright {

TiedShare tied_share(const std::vector<TiedGroup>& groups, const NodeSet& from, const NodeSet& to) {
  TiedShare share;
  for (const TiedGroup& group : groups) {
    const auto inside = [&](int v) { return to.test(v) && !from.test(v); };
    const auto count = std::count_if(group.readers.begin(), group.readers.end(), inside);
    if (count == 0) continue;
    if (!inside(group.readers.front())) {
      share.parameter_bytes += group.parameter_bytes;
      share.trainable_bytes += group.trainable_bytes;
    }
    if (count == static_cast<std::ptrdiff_t>(group.readers.size())) continue;
    share.sent_bytes += group.trainable_bytes;
    share.held_bytes += 2 * group.trainable_bytes;
  }
  return share;
}

std::vector<SplitGroup> split_groups(const std::vector<TiedGroup>& groups,
                                     const std::vector<NodeSet>& stages) {
  std::vector<SplitGroup> split;
  for (const TiedGroup& group : groups) {
    SplitGroup found{&group, {}};
    for (size_t s = 0; s < stages.size(); ++s) {
      const bool reads =
          std::any_of(group.readers.begin(), group.readers.end(), [&](int v) { return stages[s].test(v); });
      if (reads) found.stages.push_back(static_cast<int64_t>(s));
    }
    if (found.stages.size() > 1) split.push_back(std::move(found));
  }
  return split;
}

std::vector<TiedParameter> tied_parameters(const std::vector<SplitGroup>& split) {
  std::vector<TiedParameter> tied;
  for (const SplitGroup& each : split)
    for (const std::string& name : each.group->names) tied.push_back({name, each.stages});
  return tied;
}

void set_tied(const std::vector<SplitGroup>& split, const std::vector<Stage>& stages,
              std::vector<StageLoad>* loads) {
  for (StageLoad& load : *loads) {
    load.tied_sent_bytes = load.tied_held_bytes = 0;
    load.tied_with.clear();
  }
  for (const SplitGroup& each : split) {
    for (const int64_t s : each.stages) {
      StageLoad& load = (*loads)[static_cast<size_t>(s)];
      const std::vector<int64_t>& own = stages[static_cast<size_t>(s)].ranks;
      std::vector<const std::vector<int64_t>*> told;
      int64_t sent = 0;
      int64_t received = 0;
      for (const int64_t other : each.stages) {
        const std::vector<int64_t>& ranks = stages[static_cast<size_t>(other)].ranks;
        if (ranks == own) continue;
        ++received;
        load.tied_with.push_back(other);
        const bool knows =
            std::any_of(told.begin(), told.end(), [&](const auto* known) { return *known == ranks; });
        if (knows) continue;
        told.push_back(&ranks);
        sent += static_cast<int64_t>((ranks.size() + own.size() - 1) / own.size());
      }
      load.tied_sent_bytes += sent * each.group->trainable_bytes;
      if (received > 0) load.tied_held_bytes += (received + 1) * each.group->trainable_bytes;
    }
  }
}

std::string forbidden_cuts_text(const Profile& profile) {
  const std::vector<TiedGroup> groups = tied_groups(profile);
  if (groups.empty()) return "";
  // The one that keeps most together.
  const auto widest = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.readers.back() - a.readers.front() < b.readers.back() - b.readers.front();
  });
  size_t parameters = 0;
  for (const TiedGroup& group : groups) parameters += group.names.size();
  const std::string& first = profile.nodes[static_cast<size_t>(widest->readers.front())].name;
  const std::string& last = profile.nodes[static_cast<size_t>(widest->readers.back())].name;
  std::string text = "a cut between '" + first + "' and '" + last + "' would need a copy of parameter '" +
                     widest->names.front() + "' on both sides";
  if (parameters > 1) text += " (" + std::to_string(parameters - 1) + " more are tied)";
  return text +
         ", and with these weights stages update at different times; --weights 2bw or --schedule 1f1b-flush "
         "allows it";
}

}  // namespace pipewright
