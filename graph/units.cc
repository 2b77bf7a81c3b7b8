#include "graph/units.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

struct Unit {
  const char* name;
  double factor;
  std::vector<const char*> others = {};  ///< other names of it

  bool is(const std::string& word) const {
    return word == name || std::find(others.begin(), others.end(), word) != others.end();
  }
};

const std::vector<Unit>& byte_units() {
  static const std::vector<Unit> units = {{"B", 1},        {"kB", 1e3},     {"MB", 1e6},
                                          {"GB", 1e9},     {"TB", 1e12},    {"KiB", 1024},
                                          {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  return units;
}

const std::vector<Unit>& time_units() {
  static const std::vector<Unit> units = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3},
                                          {"s", 1},     {"min", 60},  {"h", 3600}};
  return units;
}

/// The first that is named is what messages say; the others are read as the same.
const std::vector<Unit>& rate_units() {
  static const std::vector<Unit> units = {
      {"B/s", 1},
      {"kB/s", 1e3},
      {"MB/s", 1e6},
      {"GB/s", 1e9},
      {"TB/s", 1e12},
      {"KiB/s", 1024},
      {"MiB/s", 0x1p20},
      {"GiB/s", 0x1p30},
      {"TiB/s", 0x1p40},
      {"bit/s", 1.0 / 8, {"b/s", "bps"}},
      {"kbit/s", 1e3 / 8, {"kbit", "kb/s", "kbps", "Kbit/s", "Kb/s", "Kbps"}},
      {"Mbit/s", 1e6 / 8, {"Mbit", "Mb/s", "Mbps", "mbit/s", "mbps"}},
      {"Gbit/s", 1e9 / 8, {"Gbit", "Gb/s", "Gbps", "gbit/s", "gbps"}},
      {"Tbit/s", 1e12 / 8, {"Tbit", "Tb/s", "Tbps", "tbit/s", "tbps"}}};
  return units;
}

/// Words that people write for bits as well as for bytes: 8 times apart. "" where it is none; otherwise the
/// prefix that both readings begin with.
std::string ambiguous_prefix(const std::string& unit) {
  std::string lower = unit;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* prefix : {"k", "m", "g", "t"}) {
    for (const char* rest : {"", "/s", "b", "be", "b/s", "bps"}) {
      if (lower != std::string(prefix) + rest || unit.ends_with('B')) continue;
      return lower[0] == 'k' ? "k" : std::string(1, static_cast<char>(std::toupper(lower[0])));
    }
  }
  return "";
}

// "24" of "24GiB" as it stands, and what a bare number most likely meant.
using Spellings = std::string (*)(const std::string& number, double value);

double parse_quantity(const std::string& text, const std::string& option, const char* what,
                      const std::vector<Unit>& units, Spellings spellings, double largest) {
  const auto fail = [&](const std::string& message) {
    throw InputError(option + ": " + in_quotes(text) + " " + message);
  };
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::invalid_argument || !std::isfinite(value)) {
    fail(std::string("is not a ") + what + "; expected a number and a unit, such as " + spellings("1", 1));
  }
  if (error == std::errc::result_out_of_range) fail("is out of range");
  const std::string number(text.data(), rest);
  std::string unit(rest, end);
  if (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  if (unit.empty())
    fail(std::string("has no unit; expected a ") + what + ", such as " + spellings(number, value));
  for (const Unit& known : units) {
    if (!known.is(unit)) continue;
    // Long units are multiplied, short ones divided by a whole number: 500us is then the double nearest to
    // 0.0005.
    const double result = known.factor < 1 ? value / std::round(1 / known.factor) : value * known.factor;
    if (value < 0) fail("is negative");
    if (result > largest) fail("is out of range");
    return result;
  }
  if (&units == &rate_units()) {
    if (const std::string prefix = ambiguous_prefix(unit); !prefix.empty())
      fail("may be meant as " + number + prefix + "bit/s or as " + number + prefix +
           "B/s, which is 8 times as much; expected one of the two");
  }
  std::vector<std::string> names;
  for (const Unit& known : units) names.emplace_back(known.name);
  const std::string near = nearest(unit, names);
  fail("has the unknown unit " + in_quotes(unit) +
       (near.empty() ? "; known: " + join(names, ", ") : "; did you mean '" + number + near + "'?"));
  return 0;
}

std::string byte_spellings(const std::string& number, double value) {
  if (value >= 1e6) return number + "B or " + format_bytes(value);
  return number + "GiB or " + number + "GB";
}

std::string time_spellings(const std::string& number, double value) {
  return value >= 100 ? number + "us or " + number + "ms" : number + "s or " + number + "ms";
}

std::string rate_spellings(const std::string& number, double value) {
  if (value >= 1e6) return number + "B/s or " + number + "bit/s";
  return number + "GB/s or " + number + "Gbit/s";
}

// Three significant digits without trailing zeros; whole numbers from 1000 on ("1023 MiB").
std::string three_digits(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), std::abs(value) >= 999.5 ? "%.0f" : "%.3g", value);
  return text;
}

// Rounded to what will be shown: 999.96 ms is 1 s, not 1000 ms.
double rounded(double value) { return std::strtod(three_digits(value).c_str(), nullptr); }

std::string format(double value, const std::vector<Unit>& ascending, const char* base) {
  if (!std::isfinite(value)) return three_digits(value) + " " + base;
  // Also for -0, and for what is left of sums that come to nothing.
  if (std::abs(value) < 1e-3 * ascending.front().factor) return std::string("0 ") + base;
  const Unit* unit = &ascending.front();
  for (const Unit& next : ascending) {
    if (rounded(std::abs(value) / unit->factor) * unit->factor >= next.factor) unit = &next;
  }
  return three_digits(value / unit->factor) + " " + unit->name;
}

}  // namespace

int64_t parse_bytes(const std::string& text, const std::string& option) {
  const double bytes =
      parse_quantity(text, option, "size", byte_units(), byte_spellings, static_cast<double>(kMostBytes));
  return std::llround(bytes);
}

double parse_seconds(const std::string& text, const std::string& option) {
  return parse_quantity(text, option, "time", time_units(), time_spellings, kMostSeconds);
}

double parse_bytes_per_second(const std::string& text, const std::string& option) {
  const double rate = parse_quantity(text, option, "rate", rate_units(), rate_spellings, kMostBytesPerSecond);
  if (rate == 0) throw InputError(option + ": " + in_quotes(text) + " is zero; expected a rate above it");
  return rate;
}

std::string format_bytes(double bytes) {
  static const std::vector<Unit> units = {{"B", 1},        {"KiB", 1024},   {"MiB", 0x1p20},
                                          {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}};
  return format(bytes, units, "B");
}

std::string format_seconds(double seconds) {
  static const std::vector<Unit> units = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  const double magnitude = std::abs(seconds);
  if (std::isfinite(seconds) && magnitude >= 7200) return three_digits(seconds / 3600) + " h";
  if (std::isfinite(seconds) && magnitude >= 120) return three_digits(seconds / 60) + " min";
  return format(seconds, units, "s");
}

std::string format_bytes_per_second(double bytes_per_second) {
  static const std::vector<Unit> units = {
      {"B/s", 1}, {"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}};
  return format(bytes_per_second, units, "B/s");
}

}  // namespace pipewright
