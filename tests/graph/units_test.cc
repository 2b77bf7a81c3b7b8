#include "graph/units.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "graph/error.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::error_of;

TEST_CASE("sizes") {
  const std::pair<const char*, int64_t> rows[] = {
      {"1B", 1},
      {"100kB", 100000},
      {"512MiB", int64_t{512} << 20},
      {"16GB", 16000000000},
      {"2TB", 2000000000000},
      {"24GiB", int64_t{24} << 30},
      {"1.5KiB", 1536},
      {"1TiB", int64_t{1} << 40},
      {"24 GiB", int64_t{24} << 30},
      {"0B", 0},
      {"1e3MB", 1000000000},
      {"0.1kB", 100},
  };
  for (const auto& [text, expected] : rows) {
    CAPTURE(text);
    CHECK(parse_bytes(text, "--memory") == expected);
  }
}

TEST_CASE("times are the nearest doubles") {
  const std::pair<const char*, double> rows[] = {{"500us", 0.0005}, {"1.5ms", 0.0015}, {"2s", 2},
                                                 {"3min", 180},     {"1h", 3600},      {"7ns", 7e-9},
                                                 {"0s", 0},         {"3us", 3e-6}};
  for (const auto& [text, expected] : rows) {
    CAPTURE(text);
    CHECK(parse_seconds(text, "--latency") == expected);
  }
}

TEST_CASE("rates") {
  const std::pair<const char*, double> rows[] = {
      {"10Gbit/s", 1.25e9}, {"1.25GB/s", 1.25e9},  {"12GiB/s", 12 * 0x1p30},
      {"8bit/s", 1},        {"100Mbit/s", 12.5e6}, {"1kB/s", 1000},
      {"3B/s", 3},          {"0.8Tbit/s", 100e9},  {"25Gbps", 3.125e9},
      {"10Gb/s", 1.25e9},   {"200gbps", 25e9},     {"25Gbit/s", 3.125e9},
      {"1 Gb/s", 125e6},    {"100Mbps", 12.5e6},   {"0.8 Tbps", 100e9},
      {"8b/s", 1},          {"10Gbit", 1.25e9},    {"80kbps", 1e4},
      {"10gbit/s", 1.25e9}};
  for (const auto& [text, expected] : rows) {
    CAPTURE(text);
    CHECK(parse_bytes_per_second(text, "--bandwidths") == expected);
  }
}

TEST_CASE("what is left of sums that come to nothing is nothing") {
  CHECK(format_seconds(1.39e-17) == "0 s");
  CHECK(format_seconds(-1e-13) == "0 s");
  CHECK(format_seconds(2e-12) == "0.002 ns");
  CHECK(format_bytes_per_second(1e-9) == "0 B/s");
}

TEST_CASE("a rate that may be of bits or of bytes is refused, and both readings are named") {
  for (const std::string unit : {"G", "g", "G/s", "Gb", "GbE", "gb/s", "GBPS", "GBps"}) {
    CAPTURE(unit);
    CHECK(error_of<InputError>([&] { parse_bytes_per_second("25" + unit, "--bandwidths"); }) ==
          "--bandwidths: \"25" + unit +
              "\" may be meant as 25Gbit/s or as 25GB/s, which is 8 times as much; expected one of the two");
  }
  CHECK_THAT(error_of<InputError>([] { parse_bytes_per_second("100m", "--b"); }),
             Catch::Contains("100Mbit/s or as 100MB/s"));
  CHECK_THAT(error_of<InputError>([] { parse_bytes_per_second("5KB/s", "--b"); }),
             Catch::Contains("5kbit/s or as 5kB/s"));
  CHECK_THAT(error_of<InputError>([] { parse_bytes_per_second("25GB", "--b"); }),
             Catch::Contains("did you mean '25GB/s'?"));
  CHECK_THAT(error_of<InputError>([] { parse_bytes_per_second("25Gbits/sec", "--b"); }),
             Catch::Contains("did you mean '25Gbit/s'?"));
}

TEST_CASE("a bare number names two likely spellings") {
  CHECK(error_of<InputError>([] { parse_bytes("24", "--memory"); }) ==
        "--memory: \"24\" has no unit; expected a size, such as 24GiB or 24GB");
  CHECK(error_of<InputError>([] { parse_bytes("16000000000", "--memory"); }) ==
        "--memory: \"16000000000\" has no unit; expected a size, such as 16000000000B or 14.9 GiB");
  CHECK(error_of<InputError>([] { parse_seconds("500", "--latency"); }) ==
        "--latency: \"500\" has no unit; expected a time, such as 500us or 500ms");
  CHECK(error_of<InputError>([] { parse_seconds("30", "--timeout"); }) ==
        "--timeout: \"30\" has no unit; expected a time, such as 30s or 30ms");
  CHECK(error_of<InputError>([] { parse_bytes_per_second("10", "--bandwidths"); }) ==
        "--bandwidths: \"10\" has no unit; expected a rate, such as 10GB/s or 10Gbit/s");
  CHECK(
      error_of<InputError>([] { parse_bytes_per_second("1250000000", "--bandwidths"); }) ==
      "--bandwidths: \"1250000000\" has no unit; expected a rate, such as 1250000000B/s or 1250000000bit/s");
}

TEST_CASE("what is no quantity is refused") {
  CHECK(error_of<InputError>([] { parse_bytes("24Gib", "--memory"); }) ==
        "--memory: \"24Gib\" has the unknown unit \"Gib\"; did you mean '24GiB'?");
  CHECK(
      error_of<InputError>([] { parse_bytes("3parsec", "--memory"); }) ==
      "--memory: \"3parsec\" has the unknown unit \"parsec\"; known: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB");
  CHECK(error_of<InputError>([] { parse_bytes("-1GB", "--memory"); }) == "--memory: \"-1GB\" is negative");
  CHECK(error_of<InputError>([] { parse_bytes_per_second("0GB/s", "--b"); }) ==
        "--b: \"0GB/s\" is zero; expected a rate above it");
  for (const char* text : {"",      " ",    "GB",    "x1GB",  "1 2GB",  "1GB ",    "1GBGB",
                           "nan",   "inf",  "infGB", "nanGB", "0x10GB", "1e999GB", "100000TB",
                           "1,5GB", "+1GB", "--1GB", ".",     "1..5GB", "1\nGB",   "1\xff"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_bytes(text, "--memory"), InputError);
  }
}

TEST_CASE("quantities for people") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(1.5 * 0x1p30) == "1.5 GiB");
  CHECK(format_bytes(1023 * 0x1p20) == "1023 MiB");
  CHECK(format_bytes(0x1p30 - 1) == "1 GiB");
  CHECK(format_bytes(-2048) == "-2 KiB");
  CHECK(format_seconds(0) == "0 s");
  CHECK(format_seconds(-0.0) == "0 s");
  CHECK(format_seconds(0.0123456) == "12.3 ms");
  CHECK(format_seconds(0.99996) == "1 s");
  CHECK(format_seconds(5e-7) == "500 ns");
  CHECK(format_seconds(119) == "119 s");
  CHECK(format_seconds(150) == "2.5 min");
  CHECK(format_seconds(9000) == "2.5 h");
  CHECK(format_bytes_per_second(1.25e9) == "1.25 GB/s");
  CHECK(format_bytes_per_second(999999) == "1 MB/s");
  CHECK(format_seconds(std::numeric_limits<double>::infinity()) == "inf s");
}

TEST_CASE("what is written for people is read as nearly the same") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const double value = std::pow(10.0, std::uniform_real_distribution<double>(-8, 6)(random));
    CAPTURE(value);
    CHECK(parse_seconds(format_seconds(value), "x") == Approx(value).epsilon(0.006));
    const double size = std::pow(10.0, std::uniform_real_distribution<double>(0, 14)(random));
    CAPTURE(size);
    CHECK(std::abs(static_cast<double>(parse_bytes(format_bytes(size), "x")) - size) <= 0.006 * size + 0.5);
    CHECK(parse_bytes_per_second(format_bytes_per_second(size), "x") == Approx(size).epsilon(0.006));
  }
}

}  // namespace
}  // namespace pipewright
