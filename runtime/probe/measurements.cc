#include "runtime/probe/measurements.h"

#include <algorithm>
#include <tuple>

#include "graph/error.h"

namespace pipewright {
namespace {

Json json_of(const MessageTime& time) { return {time.bytes, time.seconds, time.spread}; }
MessageTime message_time_of(const Json& json) { return {json.at(0), json.at(1), json.at(2)}; }

Json json_of(const CoreTime& time) { return {time.bytes, time.seconds, time.error_seconds}; }
CoreTime core_time_of(const Json& json) { return {json.at(0), json.at(1), json.at(2)}; }

template <typename Times>
Json list_of(const Times& times) {
  Json list = Json::array();
  for (const auto& time : times) list.push_back(json_of(time));
  return list;
}

ProbedPair pair_of(const Json& json) {
  ProbedPair pair{
      json.at("from"), json.at("to"), json.at("buffered_bytes"), {}, json.at("left_out_bytes"), {}, {}};
  for (const Json& time : json.at("messages")) pair.messages.push_back(message_time_of(time));
  pair.both_ways = message_time_of(json.at("both_ways"));
  for (const Json& time : json.at("core_times")) pair.core_times.push_back(core_time_of(time));
  return pair;
}

}  // namespace

double bytes_per_second(double bytes, double seconds, double latency_seconds) {
  return bytes / std::max({seconds - latency_seconds, seconds / 10, 1e-12});
}

std::vector<std::string> Measurements::hosts() const {
  std::vector<std::string> hosts;
  for (const RankFacts& rank : ranks) hosts.push_back(rank.host);
  return hosts;
}

void Measurements::sort() {
  const auto by_ends = [](const auto& a, const auto& b) {
    return std::tie(a.from, a.to) < std::tie(b.from, b.to);
  };
  std::sort(links.begin(), links.end(), by_ends);
  std::sort(pairs.begin(), pairs.end(), by_ends);
  std::sort(crowds.begin(), crowds.end(), [](const CrowdSample& a, const CrowdSample& b) {
    return std::tie(a.crowd, a.round, a.together, a.rank) < std::tie(b.crowd, b.round, b.together, b.rank);
  });
  std::sort(exchanges.begin(), exchanges.end(), [](const ProbedExchange& a, const ProbedExchange& b) {
    return std::tie(a.ranks, a.bytes) < std::tie(b.ranks, b.bytes);
  });
}

std::string line_of(const ProbedLink& link) {
  return Json{{"what", "link"},
              {"from", link.from},
              {"to", link.to},
              {"latency_seconds", link.latency_seconds},
              {"bandwidth_bytes_per_second", link.bandwidth_bytes_per_second},
              {"latency_spread", link.latency_spread},
              {"bandwidth_spread", link.bandwidth_spread}}
      .dump();
}

std::string line_of(const ProbedPair& pair) {
  return Json{{"what", "pair"},
              {"from", pair.from},
              {"to", pair.to},
              {"buffered_bytes", pair.buffered_bytes},
              {"messages", list_of(pair.messages)},
              {"left_out_bytes", pair.left_out_bytes},
              {"both_ways", json_of(pair.both_ways)},
              {"core_times", list_of(pair.core_times)}}
      .dump();
}

std::string line_of(const CrowdSample& sample) {
  return Json{{"what", "crowd"},
              {"crowd", sample.crowd},
              {"round", sample.round},
              {"together", sample.together},
              {"rank", sample.rank},
              {"received_bytes_per_second", sample.received_bytes_per_second},
              {"core_seconds", sample.core_seconds},
              {"seconds", sample.seconds}}
      .dump();
}

std::string line_of(const ProbedExchange& exchange) {
  return Json{{"what", "exchange"},
              {"ranks", exchange.ranks},
              {"bytes", exchange.bytes},
              {"seconds", exchange.seconds},
              {"spread", exchange.spread}}
      .dump();
}

void add_line(Measurements& measurements, const std::string& line) {
  const Json json = parse_json(line, "probe");
  const std::string what = json.at("what");
  if (what == "link") {
    measurements.links.push_back({json.at("from"), json.at("to"), json.at("latency_seconds"),
                                  json.at("bandwidth_bytes_per_second"), json.at("latency_spread"),
                                  json.at("bandwidth_spread")});
  } else if (what == "pair") {
    measurements.pairs.push_back(pair_of(json));
  } else if (what == "crowd") {
    measurements.crowds.push_back({json.at("crowd"), json.at("round"), json.at("together"), json.at("rank"),
                                   json.at("received_bytes_per_second"), json.at("core_seconds"),
                                   json.at("seconds")});
  } else {
    PW_CHECK_EQ(what, "exchange");
    measurements.exchanges.push_back({json.at("ranks").get<std::vector<int64_t>>(), json.at("bytes"),
                                      json.at("seconds"), json.at("spread")});
  }
}

}  // namespace pipewright
