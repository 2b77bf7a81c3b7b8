// Commands on profiles that are there: report, compare, combine.
#include <boost/program_options.hpp>
#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/profile.h"
#include "profiler/combined_profile.h"
#include "profiler/commands.h"
#include "profiler/layers.h"
#include "profiler/profile_comparison.h"
#include "profiler/report.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;
namespace fs = std::filesystem;

std::vector<std::string> profile_files(const po::variables_map& options) {
  if (!options.count("profile")) return {};
  return options["profile"].as<std::vector<std::string>>();
}

}  // namespace

void report_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()                                                                             //
      ("profile", po::value<std::string>()->value_name("FILE"), "a profile")                            //
      ("output", po::value<std::string>()->value_name("FILE"), "the report: .html, .md, .svg or .dot")  //
      ("print-config", po::bool_switch(), "print all settings and where they come from, and stop");
  const auto options =
      parse_options(arguments, description,
                    "pipewright-profiler report: a profile as a page, a table or a drawing.\n"
                    "Example: pipewright-profiler report --profile profile.json --output report.html");
  if (options["print-config"].as<bool>()) {
    print_config(options, description);
    return;
  }
  const std::string file =
      required_option(options, "profile", "Next: pipewright-profiler --model SPEC --batch-size N makes one.");
  const fs::path output = required_option(options, "output", "Likely: --output report.html");
  check_report_suffix(output);
  check_writable(output, "--output");
  const Profile profile = read_document<Profile>(file);
  write_file(output, report_text(profile, output, file));
  std::cout << "written: " << output.string() << "\n";
}

void compare_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()                                                                             //
      ("profile", po::value<std::vector<std::string>>()->value_name("FILE"), "a profile; given twice")  //
      ("print-config", po::bool_switch(), "print all settings and where they come from, and stop");
  add_wide_option(&description);
  const auto options = parse_options(
      arguments, description,
      "pipewright-profiler compare: how well two profiles of a model agree: the sum of all nodes, "
      "and\nthe layers that differ most.\n"
      "Example: pipewright-profiler compare --profile first.json --profile second.json");
  if (options["print-config"].as<bool>()) {
    print_config(options, description);
    return;
  }
  const std::vector<std::string> files = profile_files(options);
  if (files.size() != 2)
    throw InputError("--profile: got " + std::to_string(files.size()) + ", expected two",
                     "Likely: --profile first.json --profile second.json");
  std::cout << comparison_text(
      compare_profiles(read_document<Profile>(files[0]), read_document<Profile>(files[1])),
      output_width(options));
}

void combine_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()                                                                                //
      ("profile", po::value<std::vector<std::string>>()->value_name("FILE"), "a profile; given for each")  //
      ("output", po::value<std::string>()->value_name("FILE"), "the combined profile")                     //
      ("print-config", po::bool_switch(), "print all settings and where they come from, and stop");
  add_wide_option(&description);
  const auto options = parse_options(
      arguments, description,
      "pipewright-profiler combine: one profile of several that were measured at different times: the median "
      "of\neach time. For machines that others use too, which are faster and slower from minute to minute.\n"
      "Example: pipewright-profiler combine --profile 1.json --profile 2.json --profile 3.json --output "
      "profile.json");
  if (options["print-config"].as<bool>()) {
    print_config(options, description);
    return;
  }
  const std::vector<std::string> files = profile_files(options);
  if (files.size() < 2)
    throw InputError("--profile: got " + std::to_string(files.size()) + ", expected two or more",
                     "Likely: --profile first.json --profile second.json");
  const fs::path output = required_option(options, "output", "Likely: --output profile.json");
  check_writable(output, "--output");
  std::vector<MeasuredProfile> measured;
  for (const std::string& file : files) measured.push_back({file, read_document<Profile>(file)});
  const Profile combined = combined_profile(measured);
  write_document(output, combined);
  const int64_t width = output_width(options);
  for (const auto& line : headlines(combined)) std::cout << wrapped(line, width, 2) << "\n";
  std::cout << "\n" << sums_text(measured, combined, width) << "\nwritten: " << output.string() << "\n";
}

}  // namespace pipewright
