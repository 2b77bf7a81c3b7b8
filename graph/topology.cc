#include "graph/topology.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/units.h"

namespace pipewright {

int64_t Topology::device_count() const {
  int64_t count = 1;
  for (const TopologyLevel& level : levels) count *= level.count;
  return count;
}

bool Topology::is_one_host() const {
  return levels.size() == 1 && std::all_of(devices.begin(), devices.end(), [&](const TopologyDevice& device) {
           return device.host == devices[0].host;
         });
}

namespace {

/// Of a byte in a sum, as one rate for sums of all sizes.
double exchange_seconds_per_byte(const TopologyLevel& level) {
  return 1 / (level.exchange_bytes_per_second > 0 ? level.exchange_bytes_per_second
                                                  : level.bandwidth_bytes_per_second);
}

/// Of sums in which a rank sends so many.
double exchange_seconds_per_byte(const TopologyLevel& level, double sent_bytes) {
  if (level.exchanges.empty()) return exchange_seconds_per_byte(level);
  const auto seconds_of = [&](const MessageTime& sum) {
    return std::max(0.0, sum.seconds - 2 * level.latency_seconds);
  };
  const auto bytes_of = [](const MessageTime& sum) { return static_cast<double>(sum.bytes); };
  const MessageTime &first = level.exchanges.front(), &last = level.exchanges.back();
  const MessageTime& nearest = sent_bytes <= bytes_of(first) ? first : last;
  double seconds_per_byte = seconds_of(nearest) / bytes_of(nearest);
  for (size_t i = 1; i < level.exchanges.size(); ++i) {
    const MessageTime &before = level.exchanges[i - 1], &after = level.exchanges[i];
    if (sent_bytes <= bytes_of(before) || sent_bytes > bytes_of(after)) continue;
    const double part = (sent_bytes - bytes_of(before)) / (bytes_of(after) - bytes_of(before));
    seconds_per_byte = (seconds_of(before) + part * (seconds_of(after) - seconds_of(before))) / sent_bytes;
  }
  return seconds_per_byte;
}

/// The slowest level in sums against the slowest in messages.
template <typename SecondsPerByte>
double factor_of(const std::vector<TopologyLevel>& levels, const SecondsPerByte& in_sums) {
  double link = 0, exchange = 0;
  for (const TopologyLevel& level : levels) {
    if (level.count < 2) continue;
    link = std::max(link, 1 / level.bandwidth_bytes_per_second);
    exchange = std::max(exchange, in_sums(level));
  }
  return link > 0 ? std::max(1.0, exchange / link) : 1;
}

}  // namespace

double Topology::exchange_factor() const {
  return factor_of(levels, [](const TopologyLevel& level) { return exchange_seconds_per_byte(level); });
}

double exchange_factor(const std::vector<TopologyLevel>& levels, double sent_bytes) {
  return factor_of(levels,
                   [&](const TopologyLevel& level) { return exchange_seconds_per_byte(level, sent_bytes); });
}

double HostFactors::least() const {
  double least = kMost;
  for (const HostFactorRow& row : host_factor_rows()) least = std::min(least, this->*row.factor);
  return least;
}

const std::vector<HostFactorRow>& host_factor_rows() {
  static const std::vector<HostFactorRow> rows = {
      {&HostFactors::alone, "alone_factor", "one rank alone"},
      {&HostFactors::together, "together_factor", "ranks together"},
      {&HostFactors::draining, "draining_factor", "pipelines that drain"},
      {&HostFactors::by_turns, "by_turns_factor", "ranks by turns"},
      {&HostFactors::replicas, "replicas_factor", "replicas"}};
  return rows;
}

namespace {

struct LevelSecondsRow {
  double TopologyLevel::*seconds;
  const char* key;
};
const std::vector<LevelSecondsRow>& level_seconds_rows() {
  static const std::vector<LevelSecondsRow> rows = {
      {&TopologyLevel::core_seconds_per_message, "core_seconds_per_message"},
      {&TopologyLevel::core_seconds_per_byte, "core_seconds_per_byte"}};
  return rows;
}

struct LevelTimesRow {
  std::vector<MessageTime> TopologyLevel::*times;
  const char* key;
};
const std::vector<LevelTimesRow>& level_times_rows() {
  static const std::vector<LevelTimesRow> rows = {{&TopologyLevel::messages, "messages"},
                                                  {&TopologyLevel::exchanges, "exchanges"}};
  return rows;
}

/// In the unit of the key, or a text with its own: "25Gbit/s", "80GB", "5us".
template <typename Number>
Number quantity(JsonReader& reader, const char* key, Number most,
                Number (*parse)(const std::string& text, const std::string& place)) {
  const Json& value = reader.raw(key);
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    try {
      return parse(text, key);
    } catch (const InputError& error) {  // KEY: "TEXT" is not a size; expected ...
      const size_t before = std::string(key).size() + 2 + in_quotes(text).size() + 1;
      reader.fail(key, "got " + in_quotes(text) + ": " + std::string(error.what()).substr(before));
    }
  }
  if constexpr (std::is_integral_v<Number>) {
    return reader.integer(key, 0, most);
  } else {
    return reader.number(key, 0, most);
  }
}
double rate(JsonReader& reader, const char* key) {
  return quantity(reader, key, static_cast<double>(kMostBytesPerSecond), parse_bytes_per_second);
}
int64_t size(JsonReader& reader, const char* key) {
  return quantity(reader, key, int64_t{kMostBytes}, parse_bytes);
}

std::vector<MessageTime> times_from_json(JsonReader& level, const char* key) {
  std::vector<MessageTime> messages;
  for (JsonReader& entry : level.objects(key)) {
    entry.expect({"bytes", "seconds", "spread"});
    MessageTime& message = messages.emplace_back();
    message.bytes = entry.integer("bytes", 1, kMostBytes);
    message.seconds = entry.number("seconds", 0, kMostSeconds);
    message.spread = entry.number("spread", 0, kLargestNumber);
    entry.finish();
  }
  return messages;
}

HostFactors factors_from_json(JsonReader reader) {
  reader.expect(
      {"runs", "alone_factor", "together_factor", "draining_factor", "by_turns_factor", "replicas_factor"});
  HostFactors factors;
  factors.runs = reader.integer("runs", 1, kMostCount);
  for (const HostFactorRow& row : host_factor_rows())
    factors.*row.factor = reader.number(row.key, 1, HostFactors::kMost);
  reader.finish();
  return factors;
}

}  // namespace

Topology Topology::from_json(JsonReader& reader) {
  reader.expect({"schema", "levels", "memory_bytes", "devices", "calibration", "shared_cores"});
  Topology topology;
  for (JsonReader& entry : reader.objects("levels")) {
    entry.expect({"count", "bandwidth_bytes_per_second", "latency_seconds", "shared",
                  "exchange_bytes_per_second", "buffered_bytes", "core_seconds_per_message",
                  "core_seconds_per_byte", "both_ways_bytes_per_second", "messages", "exchanges"});
    TopologyLevel level;
    level.count = entry.integer("count", 1, kMostRanks);
    level.bandwidth_bytes_per_second = rate(entry, "bandwidth_bytes_per_second");
    level.latency_seconds =
        quantity(entry, "latency_seconds", static_cast<double>(kMostSeconds), parse_seconds);
    level.shared = entry.boolean("shared");
    if (entry.has("exchange_bytes_per_second"))
      level.exchange_bytes_per_second = rate(entry, "exchange_bytes_per_second");
    if (entry.has("buffered_bytes")) level.buffered_bytes = size(entry, "buffered_bytes");
    for (const LevelSecondsRow& row : level_seconds_rows())
      if (entry.has(row.key)) level.*row.seconds = entry.number(row.key, 0, kMostSeconds);
    if (entry.has("both_ways_bytes_per_second"))
      level.both_ways_bytes_per_second = rate(entry, "both_ways_bytes_per_second");
    for (const LevelTimesRow& row : level_times_rows())
      if (entry.has(row.key)) level.*row.times = times_from_json(entry, row.key);
    entry.finish();
    topology.levels.push_back(level);
  }
  topology.memory_bytes = size(reader, "memory_bytes");
  if (reader.has("devices")) {
    for (JsonReader& entry : reader.objects("devices")) {
      entry.expect({"host", "relative_speed", "memory_bytes", "class"});
      TopologyDevice device;
      device.host = entry.string("host");
      device.relative_speed = entry.number("relative_speed", 1e-6, 1e6);
      device.memory_bytes = size(entry, "memory_bytes");
      if (entry.has("class")) device.device_class = entry.string("class");
      entry.finish();
      topology.devices.push_back(std::move(device));
    }
  }
  if (reader.has("calibration")) topology.factors = factors_from_json(reader.object("calibration"));
  if (reader.has("shared_cores")) {
    JsonReader shared = reader.object("shared_cores");
    shared.expect({"devices", "cores"});
    topology.cores.devices = shared.integer("devices", 1, kMostRanks);
    topology.cores.cores = shared.integer("cores", 1, kMostRanks);
    shared.finish();
  }
  return topology;
}

Json Topology::to_json() const {
  Json json;
  json["levels"] = Json::array();
  for (const TopologyLevel& level : levels) {
    json["levels"].push_back({{"count", level.count},
                              {"bandwidth_bytes_per_second", level.bandwidth_bytes_per_second},
                              {"latency_seconds", level.latency_seconds},
                              {"shared", level.shared}});
    if (level.exchange_bytes_per_second > 0)
      json["levels"].back()["exchange_bytes_per_second"] = level.exchange_bytes_per_second;
    if (level.buffered_bytes > 0) json["levels"].back()["buffered_bytes"] = level.buffered_bytes;
    for (const LevelSecondsRow& row : level_seconds_rows())
      if (level.*row.seconds > 0) json["levels"].back()[row.key] = level.*row.seconds;
    if (level.both_ways_bytes_per_second > 0)
      json["levels"].back()["both_ways_bytes_per_second"] = level.both_ways_bytes_per_second;
    for (const LevelTimesRow& row : level_times_rows()) {
      for (const MessageTime& time : level.*row.times) {
        json["levels"].back()[row.key].push_back(
            {{"bytes", time.bytes}, {"seconds", time.seconds}, {"spread", time.spread}});
      }
    }
  }
  json["memory_bytes"] = memory_bytes;
  if (!devices.empty()) {
    json["devices"] = Json::array();
    for (const TopologyDevice& device : devices) {
      json["devices"].push_back({{"host", device.host},
                                 {"relative_speed", device.relative_speed},
                                 {"memory_bytes", device.memory_bytes}});
      if (!device.device_class.empty()) json["devices"].back()["class"] = device.device_class;
    }
  }
  if (factors.runs > 0) {
    Json& calibration = json["calibration"];
    calibration["runs"] = factors.runs;
    for (const HostFactorRow& row : host_factor_rows()) calibration[row.key] = factors.*row.factor;
  }
  if (cores.devices > 0) json["shared_cores"] = {{"devices", cores.devices}, {"cores", cores.cores}};
  return json;
}

void Topology::validate(const std::string& where) const {
  if (levels.empty()) fail_document(where, "levels", "empty; expected at least one level");
  int64_t count = 1;
  for (size_t i = 0; i < levels.size(); ++i) {
    const std::string path = "levels[" + std::to_string(i) + "]";
    check_range(where, path + ".count", levels[i].count, 1, kMostRanks);
    count *= levels[i].count;
    if (count > kMostRanks) {
      fail_document(where, path + ".count", "together more than " + std::to_string(kMostRanks) + " devices");
    }
    check_range(where, path + ".bandwidth_bytes_per_second", levels[i].bandwidth_bytes_per_second, 0.0,
                kMostBytesPerSecond);
    check_range(where, path + ".latency_seconds", levels[i].latency_seconds, 0.0, kMostSeconds);
    check_range(where, path + ".exchange_bytes_per_second", levels[i].exchange_bytes_per_second, 0.0,
                kMostBytesPerSecond);
    check_range(where, path + ".both_ways_bytes_per_second", levels[i].both_ways_bytes_per_second, 0.0,
                kMostBytesPerSecond);
    check_range(where, path + ".buffered_bytes", levels[i].buffered_bytes, 0, kMostBytes);
    for (const LevelSecondsRow& row : level_seconds_rows())
      check_range(where, path + "." + row.key, levels[i].*row.seconds, 0.0, kMostSeconds);
    for (const LevelTimesRow& row : level_times_rows()) {
      const std::vector<MessageTime>& times = levels[i].*row.times;
      for (size_t m = 1; m < times.size(); ++m) {
        if (times[m].bytes > times[m - 1].bytes) continue;
        fail_document(where, path + "." + row.key + "[" + std::to_string(m) + "].bytes",
                      "got " + std::to_string(times[m].bytes) + " behind " +
                          std::to_string(times[m - 1].bytes) + "; expected ascending sizes");
      }
    }
    if (levels[i].count > 1 && levels[i].bandwidth_bytes_per_second == 0) {
      fail_document(where, path + ".bandwidth_bytes_per_second",
                    "0, but " + std::to_string(levels[i].count) + " members have to exchange data");
    }
  }
  check_range(where, "memory_bytes", memory_bytes, 0, kMostBytes);
  if (cores.devices > 0) {
    check_range(where, "shared_cores.devices", cores.devices, 1, kMostRanks);
    check_range(where, "shared_cores.cores", cores.cores, 1, kMostRanks);
  }
  for (const HostFactorRow& row : host_factor_rows())
    check_range(where, std::string("calibration.") + row.key, factors.*row.factor, 1.0, HostFactors::kMost);
  if (!devices.empty() && static_cast<int64_t>(devices.size()) != count) {
    fail_document(where, "devices",
                  "got " + std::to_string(devices.size()) + ", but the levels make " + std::to_string(count) +
                      " devices",
                  "List every device or leave `devices` out.");
  }
}

Topology flat_topology(int64_t devices, double bandwidth_bytes_per_second, double latency_seconds,
                       int64_t memory_bytes) {
  Topology topology;
  topology.levels.push_back({devices, bandwidth_bytes_per_second, latency_seconds, false});
  topology.memory_bytes = memory_bytes;
  return topology;
}

}  // namespace pipewright
