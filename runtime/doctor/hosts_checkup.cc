#include "runtime/doctor/hosts_checkup.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/units.h"
#include "runtime/launch/hosts.h"
#include "runtime/launch/rank_process.h"

namespace pipewright {
namespace {

constexpr const char* kSchema = "pipewright.doctor/1";
constexpr const char* kShared = "shared";
// Traces of ranks are laid beside each other by these clocks.
constexpr double kMuchOff = 1;

const std::vector<std::string>& verdicts() {
  static const std::vector<std::string> names = {"ok", "note", "wrong"};
  return names;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A file of this folder, for others to look for.
class SharedMark {
 public:
  SharedMark() {
    std::string name = ".pipewright-doctor-XXXXXX";
    const int file = mkstemp(name.data());
    if (file < 0) return;
    close(file);
    name_ = name;
  }
  SharedMark(const SharedMark&) = delete;
  SharedMark& operator=(const SharedMark&) = delete;
  ~SharedMark() {
    if (!name_.empty()) unlink(name_.c_str());
  }
  /// "": none could be made.
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

Finding folder_of(const std::string& folder, const std::string& mark, bool shared) {
  if (mark.empty())
    return {"folder", Verdict::kNote,
            folder + " cannot be written here, so nobody knows whether it is shared",
            "Start from a folder in which runs are to lie."};
  if (shared) return {"folder", Verdict::kOk, folder + " is the same on both", ""};
  return {"folder", Verdict::kNote, folder + " is another folder there",
          "Checkpoints and kept states of all ranks go into one run folder: give --output in one that all "
          "hosts share."};
}

Finding clock_of(double there, double before, double after) {
  // It was read at some moment between.
  const double least = std::max(0., std::max(before - there, there - after));
  if (least < kMuchOff)
    return {"clocks", Verdict::kOk, "as here, to " + format_seconds(std::max(after - before, least)), ""};
  return {
      "clocks", Verdict::kNote, "at least " + format_seconds(least) + (there < before ? " behind" : " ahead"),
      "Lines and traces of the ranks cannot be laid side by side: is a time service running (timedatectl)?"};
}

Checkup checkup_elsewhere(const Checkup& here, const std::string& host, const std::string& remote_shell,
                          std::chrono::milliseconds patience, const std::string& mark) {
  const std::string folder = std::filesystem::current_path().string();
  const std::string program = program_on_other_hosts();
  const std::string inner = "cd " + shell_line({folder}) + " && { test -n '" + mark + "' -a -e '" + mark +
                            "' && echo " + kShared + " || echo apart; } && { " +
                            shell_line({program, "doctor", "--json"}) + "; true; }";
  std::string output;
  const double before = now_seconds();
  const bool ended = run_elsewhere(remote_shell, host, {"sh", "-c", inner}, patience, &output);
  const double after = now_seconds();
  const auto failed = [&](const std::string& what, const std::string& found, const std::string& remedy) {
    return Checkup{host, "", 0, {{what, Verdict::kWrong, found, remedy}}};
  };
  const std::string shell_words = remote_shell + " " + host;
  if (output.empty())
    return failed("reached", ended ? "its shell says nothing" : "no",
                  shell_words + " true must work without a password, and " + folder + " must be there.");
  const size_t line = output.find('\n');
  const std::string document = line == std::string::npos ? "" : output.substr(line + 1);
  if (!ended || document.empty())
    return failed("program", program + " does not run there",
                  "The same program must be there under the same name: try " + shell_words + " " + program +
                      " --version");
  Checkup checkup;
  try {
    checkup = checkup_from(document, host + ": doctor --json");
  } catch (const Error& error) {
    return failed("program", error.what(),
                  "Is it of another version? " + shell_words + " " + program + " --version");
  }
  checkup.host = host;
  const Finding same =
      checkup.program == here.program
          ? Finding{"program", Verdict::kOk, "as here: " + checkup.program, ""}
          : Finding{"program", Verdict::kWrong, checkup.program + "; here " + here.program,
                    "Ranks of one job must be of one program: install the same on all hosts."};
  checkup.findings.insert(checkup.findings.begin(),
                          {{"reached", Verdict::kOk, "with " + remote_shell, ""},
                           same,
                           folder_of(folder, mark, output.substr(0, line) == kShared),
                           clock_of(checkup.clock_seconds, before, after)});
  return checkup;
}

}  // namespace

Checkup checkup_of(const Machine& machine) {
  return {machine.name, machine.program, machine.clock_seconds, findings_of(machine)};
}

std::string text_of(const Checkup& checkup) {
  Json findings = Json::array();
  for (const Finding& finding : checkup.findings) {
    findings.push_back({{"what", finding.what},
                        {"verdict", verdicts()[static_cast<size_t>(finding.verdict)]},
                        {"found", finding.found},
                        {"remedy", finding.remedy}});
  }
  return json_text({{"schema", kSchema},
                    {"host", checkup.host},
                    {"program", checkup.program},
                    {"clock_seconds", checkup.clock_seconds},
                    {"findings", findings}});
}

Checkup checkup_from(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  JsonReader reader(json, where);
  reader.string_one_of("schema", {kSchema});
  Checkup checkup;
  checkup.host = reader.string("host");
  checkup.program = reader.string("program");
  checkup.clock_seconds = reader.number("clock_seconds", 0, 1e12);
  for (JsonReader& each : reader.objects("findings")) {
    Finding finding;
    finding.what = each.string("what");
    const std::string verdict = each.string_one_of("verdict", verdicts());
    while (verdicts()[static_cast<size_t>(finding.verdict)] != verdict)
      finding.verdict = static_cast<Verdict>(static_cast<int>(finding.verdict) + 1);
    finding.found = each.string("found");
    finding.remedy = each.string("remedy");
    each.finish();
    checkup.findings.push_back(std::move(finding));
  }
  reader.finish();
  return checkup;
}

std::vector<Checkup> checkups_of_hosts(const Checkup& here, const std::vector<std::string>& hosts,
                                       const std::string& remote_shell, std::chrono::milliseconds patience) {
  const SharedMark mark;
  std::vector<Checkup> checkups(hosts.size());
  std::vector<std::thread> askers;
  for (size_t i = 0; i < hosts.size(); ++i) {
    askers.emplace_back(
        [&, i] { checkups[i] = checkup_elsewhere(here, hosts[i], remote_shell, patience, mark.name()); });
  }
  for (std::thread& asker : askers) asker.join();
  return checkups;
}

}  // namespace pipewright
