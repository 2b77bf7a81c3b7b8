#include "graph/units.h"

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

const std::vector<Unit>& rate_units() {
  static const std::vector<Unit> units = {
      {"B/s", 1},          {"kB/s", 1e3},       {"MB/s", 1e6},       {"GB/s", 1e9},       {"TB/s", 1e12},
      {"KiB/s", 1024},     {"MiB/s", 0x1p20},   {"GiB/s", 0x1p30},   {"TiB/s", 0x1p40},   {"bit/s", 1.0 / 8},
      {"kbit/s", 1e3 / 8}, {"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8}, {"Tbit/s", 1e12 / 8}};
  return units;
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
    if (unit != known.name) continue;
    // Long units are multiplied, short ones divided by a whole number: 500us is then the double nearest to
    // 0.0005.
    const double result = known.factor < 1 ? value / std::round(1 / known.factor) : value * known.factor;
    if (value < 0) fail("is negative");
    if (result > largest) fail("is out of range");
    return result;
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
  if (value == 0) return std::string("0 ") + base;  // also for -0
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
