#include "runtime/probe/probe_report.h"

#include <algorithm>
#include <cstdio>

#include "graph/text_table.h"
#include "graph/units.h"
#include "runtime/probe/probed_topology.h"

namespace pipewright {
namespace {

constexpr auto kLeft = TableColumn::Side::kLeft;

std::string percent(double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * part);
  return text;
}

std::string with_spread(const std::string& figure, double spread) {
  return figure + " (" + percent(spread) + ")";
}

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string link_table(const Measurements& measurements) {
  TextTable table({{"ranks", kLeft}, {"hosts", kLeft}, {"latency"}, {"spread"}, {"bandwidth"}, {"spread"}});
  const auto host = [&](int64_t rank) { return measurements.ranks.at(static_cast<size_t>(rank)).host; };
  for (const ProbedLink& link : measurements.links) {
    table.add({std::to_string(link.from) + " - " + std::to_string(link.to),
               host(link.from) + " - " + host(link.to), format_seconds(link.latency_seconds),
               percent(link.latency_spread), format_bytes_per_second(link.bandwidth_bytes_per_second),
               percent(link.bandwidth_spread)});
  }
  return table.text();
}

std::string core_text(const std::vector<CoreTime>& times) {
  if (times.empty()) return "what messages take of a core that computes was not measured";
  const CoreLine line = core_line(times);
  std::string text = "each end of a message takes " + format_seconds(line.seconds_per_message) +
                     " of a core that computes, and " + format_seconds(line.seconds_per_byte * 0x1p20) +
                     " for each MiB (";
  for (size_t i = 0; i < times.size(); ++i) {
    text += (i > 0 ? ", " : "") + size_text(times[i].bytes) + ": " + format_seconds(times[i].seconds) +
            " +- " + format_seconds(times[i].error_seconds);
  }
  return text + ")";
}

std::string pair_text(const Measurements& measurements, const ProbedPair& pair) {
  const bool between = between_hosts(measurements, pair.from, pair.to);
  std::string text = std::string(between ? "between hosts" : "within a host") + ", ranks " +
                     std::to_string(pair.from) + " and " + std::to_string(pair.to) + ":\n";
  TextTable table({{"one way", kLeft}, {"time"}, {"spread"}, {"bytes in a second"}});
  for (const MessageTime& time : pair.messages) {
    table.add({size_text(time.bytes), format_seconds(time.seconds), percent(time.spread),
               format_bytes_per_second(static_cast<double>(time.bytes) / std::max(time.seconds, 1e-12))});
  }
  text += table.text();
  if (pair.left_out_bytes > 0)
    text += "from " + size_text(pair.left_out_bytes) + " on left out: such a message takes too long\n";
  text += "both ways at once: " + size_text(pair.both_ways.bytes) + " each way in " +
          with_spread(format_seconds(pair.both_ways.seconds), pair.both_ways.spread) + ", " +
          format_bytes_per_second(static_cast<double>(pair.both_ways.bytes) /
                                  std::max(pair.both_ways.seconds, 1e-12)) +
          " each way\n";
  text += pair.buffered_bytes > 0
              ? "the link holds " + size_text(pair.buffered_bytes) + " that were not received yet\n"
              : "the link holds nothing: a message is with its sender until it is received\n";
  text += core_text(pair.core_times) + "\n";
  return text;
}

std::string counted(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string crowd_text(const ProbedCrowd& probed) {
  const Crowd& crowd = probed.crowd;
  const auto links = static_cast<size_t>(crowd.links);
  std::string text;
  switch (crowd.kind) {
    case Crowd::Kind::kPairsOfAHost:
      text = counted(links, "pair") + " of a host's ranks at once: ";
      break;
    case Crowd::Kind::kRanksOfTwoHosts:
      text = counted(links, "rank") + " of a host to those of another at once: ";
      break;
    case Crowd::Kind::kPairsOfHosts:
      text = counted(links, "pair") + " of hosts at once: ";
      break;
  }
  text += with_spread(format_bytes_per_second(probed.together_bytes_per_second), probed.together_spread) +
          " together, " +
          with_spread(format_bytes_per_second(probed.alone_bytes_per_second), probed.alone_spread) +
          " by one alone";
  if (crowd.kind == Crowd::Kind::kRanksOfTwoHosts)
    return text + (probed.cores_had_time ? "" : "; their cores were busy");
  switch (probed.verdict()) {
    case ProbedCrowd::Verdict::kNotOneLink:
      return text + "; not one link for all";
    case ProbedCrowd::Verdict::kOneLink:
      return text + "; one link for all";
    case ProbedCrowd::Verdict::kNotKnown:
      break;
  }
  return text + "; their cores were busy, so the link may be one or several";
}

std::string exchange_name(const Measurements& measurements, const ProbedExchange& exchange) {
  const bool between = between_hosts(measurements, exchange.ranks.at(0), exchange.ranks.at(1));
  return "sum of " + size_text(exchange.bytes) + " over " + std::to_string(exchange.ranks.size()) +
         " ranks " + (between ? "of as many hosts" : "of a host");
}

struct SpreadFigure {
  std::string what;
  double spread = 0;
};

std::vector<SpreadFigure> figures_of(const Measurements& measurements) {
  std::vector<SpreadFigure> figures;
  const auto between = [](const auto& ends) {
    return " between ranks " + std::to_string(ends.from) + " and " + std::to_string(ends.to);
  };
  for (const ProbedLink& link : measurements.links) {
    figures.push_back({"the latency" + between(link), link.latency_spread});
    figures.push_back({"the bandwidth" + between(link), link.bandwidth_spread});
  }
  for (const ProbedPair& pair : measurements.pairs) {
    for (const MessageTime& time : pair.messages)
      figures.push_back({size_text(time.bytes) + " one way" + between(pair), time.spread});
    figures.push_back({"both ways" + between(pair), pair.both_ways.spread});
    if (pair.core_times.empty()) continue;
    // Of small messages what they take may well be less than can be measured.
    const CoreTime& largest = pair.core_times.back();
    const double least = std::max({largest.seconds, largest.error_seconds, 1e-12});
    figures.push_back({"what " + size_text(largest.bytes) + between(pair) + " takes of a core",
                       largest.error_seconds / least});
  }
  for (const ProbedCrowd& crowd : probed_crowds(measurements)) {
    figures.push_back({"one alone beside several at once", crowd.alone_spread});
    figures.push_back({"several at once", crowd.together_spread});
  }
  for (const ProbedExchange& sum : measurements.exchanges)
    figures.push_back({"the " + exchange_name(measurements, sum), sum.spread});
  return figures;
}

}  // namespace

std::string probe_report(const Measurements& measurements) {
  std::string text = link_table(measurements);
  for (const ProbedPair& pair : measurements.pairs) text += "\n" + pair_text(measurements, pair);
  text += "\n";
  for (const ProbedCrowd& crowd : probed_crowds(measurements)) text += crowd_text(crowd) + "\n";
  for (const ProbedExchange& sum : measurements.exchanges) {
    text +=
        exchange_name(measurements, sum) + ": " + with_spread(format_seconds(sum.seconds), sum.spread) + "\n";
  }
  std::vector<double> spreads;
  for (const SpreadFigure& figure : figures_of(measurements)) spreads.push_back(figure.spread);
  if (spreads.empty()) return text;
  std::sort(spreads.begin(), spreads.end());
  return text + "noise: half of the figures spread by " + percent(spreads[spreads.size() / 2]) +
         " or less, the worst by " + percent(spreads.back()) + "\n";
}

std::string noise_warning(const Measurements& measurements) {
  const auto figures = figures_of(measurements);
  const auto noisy = std::count_if(figures.begin(), figures.end(),
                                   [](const SpreadFigure& figure) { return figure.spread > kNoisySpread; });
  if (noisy == 0) return "";
  const auto worst =
      std::max_element(figures.begin(), figures.end(),
                       [](const SpreadFigure& a, const SpreadFigure& b) { return a.spread < b.spread; });
  return std::to_string(noisy) + " of " + std::to_string(figures.size()) + " figures spread by more than " +
         percent(kNoisySpread) + ", most of all " + worst->what + " (" + percent(worst->spread) +
         "); if the hosts were busy, probe again when they are not";
}

}  // namespace pipewright
