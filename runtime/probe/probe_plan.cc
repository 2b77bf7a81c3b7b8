#include "runtime/probe/probe_plan.h"

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

size_t place_of(const HostLayout& layout, const std::string& host) {
  const auto found = std::find(layout.names.begin(), layout.names.end(), host);
  return static_cast<size_t>(found - layout.names.begin());
}

std::vector<Flow> flows_between(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  std::vector<Flow> flows;
  for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) flows.push_back({from[i], to[i]});
  return flows;
}

// Neighbours two by two, as far as they go.
std::vector<Flow> disjoint_pairs(const std::vector<int64_t>& ranks) {
  std::vector<Flow> flows;
  for (size_t i = 0; i + 1 < ranks.size(); i += 2) flows.push_back({ranks[i], ranks[i + 1]});
  return flows;
}

std::vector<Crowd> crowds_of(const HostLayout& layout) {
  std::vector<Crowd> crowds;
  const auto add = [&](Crowd::Kind kind, std::vector<Flow> alone, std::vector<Flow> together) {
    if (together.size() <= alone.size()) return;
    const size_t links = together.size() / alone.size();
    crowds.push_back({kind, std::move(alone), std::move(together), static_cast<int64_t>(links)});
  };
  const auto& hosts = layout.ranks;
  if (hosts[0].size() > 1)
    add(Crowd::Kind::kPairsOfAHost, {{hosts[0][0], hosts[0][1]}}, disjoint_pairs(hosts[0]));
  if (hosts.size() < 2) return crowds;
  const auto first_two = flows_between(hosts[0], hosts[1]);
  add(Crowd::Kind::kRanksOfTwoHosts, {first_two[0]}, first_two);
  std::vector<Flow> all;
  for (size_t host = 0; host + 1 < hosts.size(); host += 2)
    for (const Flow& flow : flows_between(hosts[host], hosts[host + 1])) all.push_back(flow);
  add(Crowd::Kind::kPairsOfHosts, first_two, all);
  return crowds;
}

std::vector<std::vector<int64_t>> groups_of(const HostLayout& layout) {
  std::vector<int64_t> within = layout.ranks[0], between;
  for (const auto& ranks : layout.ranks) between.push_back(ranks[0]);
  std::vector<std::vector<int64_t>> groups;
  for (auto& group : {within, between}) {
    const auto most = static_cast<ptrdiff_t>(std::min<size_t>(group.size(), kMostProbedRanks));
    if (most > 1) groups.emplace_back(group.begin(), group.begin() + most);
  }
  return groups;
}

}  // namespace

std::string RankFacts::to_text() const {
  return Json{{"host", host}, {"machine", machine}, {"cores", cores}, {"host_cores", host_cores}}.dump();
}

RankFacts RankFacts::from_text(const std::string& text) {
  const Json json = parse_json(text, "probe");
  return {json.at("host"), json.at("machine"), json.at("cores"), json.at("host_cores")};
}

bool have_a_core_each(const RankFacts& rank, const RankFacts& other) {
  if (rank.machine != other.machine) return true;
  std::set<int> cores(rank.cores.begin(), rank.cores.end());
  cores.insert(other.cores.begin(), other.cores.end());
  return cores.size() > 1;
}

HostLayout layout_of(const std::vector<std::string>& hosts) {
  PW_CHECK(!hosts.empty(), "no ranks");
  HostLayout layout;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const size_t place = place_of(layout, hosts[rank]);
    if (place == layout.names.size()) {
      layout.names.push_back(hosts[rank]);
      layout.ranks.emplace_back();
    }
    layout.ranks[place].push_back(static_cast<int64_t>(rank));
  }
  const size_t per_host = layout.ranks[0].size();
  layout.even = true;
  for (const auto& ranks : layout.ranks) {
    const bool neighbours = ranks.back() - ranks.front() + 1 == static_cast<int64_t>(ranks.size());
    layout.even = layout.even && ranks.size() == per_host && neighbours;
  }
  return layout;
}

ProbePlan probe_plan(const std::vector<std::string>& hosts) {
  const HostLayout layout = layout_of(hosts);
  ProbePlan plan;
  const auto probed = std::min(static_cast<int64_t>(hosts.size()), kMostProbedRanks);
  for (int64_t from = 0; from < probed; ++from)
    for (int64_t to = from + 1; to < probed; ++to) plan.links.push_back({from, to});
  for (const auto& ranks : layout.ranks) {
    if (ranks.size() < 2) continue;
    plan.pairs.push_back({ranks[0], ranks[1]});
    break;
  }
  if (layout.names.size() > 1) plan.pairs.push_back({layout.ranks[0][0], layout.ranks[1][0]});
  for (const Flow& pair : plan.pairs)
    if (std::max(pair.from, pair.to) >= probed) plan.links.push_back(pair);
  if (layout.even) plan.crowds = crowds_of(layout);
  plan.groups = groups_of(layout);
  return plan;
}

}  // namespace pipewright
