// Quantities as people write them. On the command line a size, time or rate without a unit is an error.
#pragma once

#include <cstdint>
#include <string>

namespace pipewright {

/// "24GiB", "16GB", "512MiB", "100kB", "1B" -> bytes. GB = 1e9, GiB = 2^30. One blank before the unit is
/// allowed. InputError names `option`, what was got and, for a bare number, the two likely spellings; for an
/// unknown unit, the nearest.
int64_t parse_bytes(const std::string& text, const std::string& option);

/// "500us", "1.5ms", "2s", "3min" -> seconds.
double parse_seconds(const std::string& text, const std::string& option);

/// "10Gbit/s", "1.25GB/s", "12GiB/s" -> bytes per second, above zero. Bits also as "10Gb/s", "10Gbps",
/// "10gbps". What may be meant as bits or as bytes ("25G", "25GBPS") is an InputError that names both
/// readings.
double parse_bytes_per_second(const std::string& text, const std::string& option);

/// For people: "1.5 GiB", "12.3 ms", "1.25 GB/s". Three significant digits, no trailing zeros; below a
/// thousandth of the smallest unit 0; minutes from 120 s on, hours from 120 min on.
std::string format_bytes(double bytes);
std::string format_seconds(double seconds);
std::string format_bytes_per_second(double bytes_per_second);

}  // namespace pipewright
