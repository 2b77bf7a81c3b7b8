#include "runtime/control/heartbeat.h"

#include <algorithm>
#include <cstdio>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

bool waits(const RankReport& report) {
  return report.beat && !report.beat->finished && !report.beat->progress.activity.peers.empty();
}

// The peer to name. Ranks that reduce wait for all other replicas: the one that is not there yet counts.
int64_t awaited(const std::vector<RankReport>& reports, const RankReport& waiting) {
  const Activity& activity = waiting.beat->progress.activity;
  for (const int64_t peer : activity.peers) {
    if (peer < 0 || peer >= static_cast<int64_t>(reports.size())) continue;
    const auto& beat = reports[static_cast<size_t>(peer)].beat;
    if (!beat || beat->progress.activity.operation != activity.operation) return peer;
  }
  return activity.peers.front();
}

}  // namespace

std::string seconds_words(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

std::string seconds_words(std::chrono::duration<double> time) { return seconds_words(time.count()); }

std::string joined(std::initializer_list<std::string> parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : "; ") + part;
  }
  return text;
}

std::string ranks_words(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i > 1) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string Beat::to_text() const {
  Json json;
  json["number"] = number;
  json["operation"] = progress.activity.operation;
  json["peers"] = progress.activity.peers;
  json["done"] = progress.activity.done;
  json["seconds"] = progress.seconds;
  json["stalled_seconds"] = progress.stalled_seconds;
  json["work"] = work;
  json["finished"] = finished;
  return json.dump();
}

Beat Beat::from_text(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    Beat beat;
    beat.number = json.at("number").get<int64_t>();
    beat.progress.activity.operation = json.at("operation").get<std::string>();
    beat.progress.activity.peers = json.at("peers").get<std::vector<int64_t>>();
    beat.progress.activity.done = json.at("done").get<bool>();
    beat.progress.seconds = json.at("seconds").get<double>();
    beat.progress.stalled_seconds = json.at("stalled_seconds").get<double>();
    beat.work = json.at("work").get<int64_t>();
    beat.finished = json.at("finished").get<bool>();
    return beat;
  } catch (const Json::exception&) {
    throw PeerError("'" + text + "' is no heartbeat", "do all ranks run the same version?");
  }
}

std::string doing(const RankReport& report) {
  if (!report.beat || report.beat->progress.activity.operation.empty()) return "";
  return report.beat->progress.activity.operation + " since " + seconds_words(report.beat->progress.seconds);
}

std::string last_heard_of(const RankReport& report) {
  const std::string what = doing(report);
  return what.empty() ? "" : "last heard of in " + what;
}

std::string state_words(const RankReport& report) {
  const std::string process =
      report.process ? "its process " + std::to_string(report.process->pid) + " on " + report.process->host
                     : "its process";
  switch (report.state) {
    case ProcessState::kGone:
      return process + " has died";
    case ProcessState::kStopped:
      return process + " is stopped (SIGSTOP or a debugger)";
    case ProcessState::kRunning:
      return process + " runs";
    case ProcessState::kUnknown:
      break;
  }
  return process + " is stopped or its host is cut off";
}

std::string who_waits_for(const std::vector<RankReport>& reports, int64_t rank) {
  std::string text;
  std::vector<int64_t> reached = {rank};
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const RankReport& report : reports) {
      if (!waits(report) || awaited(reports, report) != reached[i]) continue;
      if (std::find(reached.begin(), reached.end(), report.rank) != reached.end()) continue;
      reached.push_back(report.rank);
      if (!text.empty()) text += "; ";
      text += "rank " + std::to_string(report.rank) + " waits for rank " + std::to_string(reached[i]) + " (" +
              doing(report) + ")";
    }
  }
  return text;
}

std::vector<int64_t> waiting_chain(const std::vector<RankReport>& reports, int64_t rank) {
  std::vector<int64_t> chain = {rank};
  while (true) {
    const RankReport& last = reports.at(static_cast<size_t>(chain.back()));
    if (!waits(last)) return chain;
    const int64_t next = awaited(reports, last);
    const bool twice = std::find(chain.begin(), chain.end(), next) != chain.end();
    chain.push_back(next);
    if (twice) return chain;
  }
}

std::string chain_words(const std::vector<RankReport>& reports, const std::vector<int64_t>& chain) {
  std::string text;
  for (size_t i = 0; i + 1 < chain.size(); ++i) {
    text += (i == 0 ? "rank " : "; rank ") + std::to_string(chain[i]) + " waits for rank " +
            std::to_string(chain[i + 1]) + " (" + doing(reports.at(static_cast<size_t>(chain[i]))) + ")";
  }
  return text;
}

}  // namespace pipewright
