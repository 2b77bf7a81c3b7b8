#include "runtime/commands/doctor_command.h"

#include <algorithm>
#include <chrono>
#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/text_table.h"
#include "runtime/commands/launch_options.h"
#include "runtime/doctor/hosts_checkup.h"
#include "runtime/launch/hosts.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

constexpr const char* kDoctorUsage = "pipewright-runtime doctor [--hosts FILE] [--rsh COMMAND] [--json]";
constexpr std::chrono::seconds kHostPatience{60};  // a program's first start from a file server

std::string mark_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kNote:
      return "note";
    case Verdict::kWrong:
      return "WRONG";
  }
  PW_CHECK(false, "a verdict without a name");
}

std::string table_of(const std::vector<Checkup>& checkups, int64_t width) {
  std::string text;
  for (const Checkup& checkup : checkups) {
    text += (text.empty() ? "" : "\n") + checkup.host + "\n";
    for (const Finding& finding : checkup.findings) {
      std::string head = "  " + mark_of(finding.verdict);
      head.resize(9, ' ');
      head += finding.what;
      head.resize(std::max<size_t>(21, head.size() + 1), ' ');
      text += wrapped(head + finding.found, width, 21) + "\n";
      if (!finding.remedy.empty()) text += wrapped(std::string(21, ' ') + finding.remedy, width, 21) + "\n";
    }
  }
  return text;
}

}  // namespace

void run_doctor(const std::vector<std::string>& arguments) {
  po::options_description description;
  add_host_options(&description);
  description.add_options()("json", po::bool_switch(),
                            "print this host's findings as JSON; not with --hosts");
  add_wide_option(&description);
  const po::variables_map options = parse_options(arguments, description, kDoctorUsage);
  const bool json = options["json"].as<bool>();
  if (json && options.count("hosts")) throw InputError("--json does not go with --hosts", kDoctorUsage);
  const std::string shell = remote_shell_from(options);
  std::vector<std::string> hosts;
  if (options.count("hosts"))
    for (const HostSlots& each : read_hosts(options["hosts"].as<std::string>())) hosts.push_back(each.host);

  std::vector<Checkup> checkups = {checkup_of(
      look_at_machine("pipewright " + pipewright_version() + ", LibTorch " PIPEWRIGHT_TORCH_VERSION))};
  if (json) {
    std::cout << text_of(checkups.front()) << std::flush;
  } else {
    for (Checkup& other : checkups_of_hosts(Checkup(checkups.front()), hosts, shell, kHostPatience))
      checkups.push_back(std::move(other));
    std::cout << table_of(checkups, output_width(options)) << std::flush;
  }
  int64_t wrong = 0, all = 0;
  for (const Checkup& checkup : checkups) {
    for (const Finding& finding : checkup.findings) {
      ++all;
      if (finding.verdict == Verdict::kWrong) ++wrong;
    }
  }
  if (wrong > 0)
    throw RunError("doctor: " + std::to_string(wrong) + " of " + std::to_string(all) + " things " +
                       (wrong == 1 ? "is" : "are") + " wrong",
                   "Behind each stands what to do; docs/troubleshooting.md has more.");
}

}  // namespace pipewright
