#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/json.h"
#include "graph/units.h"
#include "runtime/doctor/machine.h"

namespace pipewright {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
// The launcher asks for 32, and six for each rank: 37 ranks.
constexpr int64_t kFewFiles = 256;
// What is kept for lost ranks takes the weights several times.
constexpr int64_t kMuchSharedMemory = kGiB;
constexpr double kSlowClock = 500e-9;  // by the kernel; through the process's own pages it takes 20 to 50 ns

std::string bytes(int64_t amount) { return format_bytes(static_cast<double>(amount)); }

std::string rounded(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

std::string cores_text(int64_t cores) { return std::to_string(cores) + (cores == 1 ? " core" : " cores"); }

Finding of_trial(const std::string& what, const Trial& trial, const std::string& works,
                 const std::string& remedy, Verdict failed = Verdict::kWrong) {
  if (trial.failure.empty()) return {what, Verdict::kOk, works, ""};
  return {what, failed, trial.failure, remedy};
}

Finding cores_of(const Machine& m) {
  Finding finding{"cores", Verdict::kOk, std::to_string(m.cores) + " of " + std::to_string(m.cores_of_all),
                  ""};
  if (m.cores_of_quota > 0 && m.cores_of_quota < static_cast<double>(m.cores)) {
    finding.verdict = Verdict::kNote;
    finding.found += "; a container's limit allows " + rounded(m.cores_of_quota) + " at a time";
    finding.remedy = "More ranks than that wait for each other by turns: --ranks " +
                     std::to_string(std::max<int64_t>(1, std::lround(std::floor(m.cores_of_quota)))) +
                     ", or raise the limit (docker run --cpus).";
  } else if (m.cores == 1) {
    finding.verdict = Verdict::kNote;
    finding.remedy = "Ranks here only take turns: pipelines are no faster than one device.";
  }
  return finding;
}

Finding binding_of(const Machine& m) {
  if (m.binds) return {"binding", Verdict::kOk, "ranks can be bound to cores", ""};
  return {"binding", Verdict::kNote, "a thread cannot be bound to a core",
          "Ranks run all the same, and their times vary more: does a container forbid it?"};
}

Finding load_of(const Machine& m) {
  const std::string found = rounded(m.load) + " on " + cores_text(m.cores);
  if (m.load <= 0.25 * static_cast<double>(m.cores)) return {"load", Verdict::kOk, found, ""};
  return {
      "load", Verdict::kNote, found,
      "Other programs compute here: profiles, and what plans predict, are of a machine without. Look with "
      "top."};
}

Finding memory_of(const Machine& m) {
  const std::string found = bytes(m.free_memory_bytes) + " free of " + bytes(m.memory_bytes);
  if (m.free_memory_bytes >= kGiB) return {"memory", Verdict::kOk, found, ""};
  return {
      "memory", Verdict::kNote, found,
      "LibTorch alone takes some 200 MiB for each rank. pipewright-optimizer check says what a plan needs."};
}

// Messages do not need it: their rings are anonymous memory.
Finding shared_memory_of(const Machine& m) {
  Finding finding = of_trial(
      "/dev/shm", m.shared_memory,
      bytes(m.free_shared_memory_bytes) + " free of " + bytes(m.shared_memory_bytes),
      "The state for lost ranks is kept there: --on-loss end, or let this user write it.", Verdict::kNote);
  if (finding.verdict == Verdict::kOk && m.free_shared_memory_bytes < kMuchSharedMemory) {
    finding.verdict = Verdict::kNote;
    finding.remedy =
        "With --on-loss the state of a model that needs more is kept on the disk instead (docker run "
        "--shm-size=4g).";
  }
  return finding;
}

Finding files_of(const Machine& m) {
  const std::string found = std::to_string(m.open_files) + " open files";
  if (m.open_files >= kFewFiles) return {"files", Verdict::kOk, found, ""};
  return {"files", Verdict::kWrong, found,
          "A launcher needs 32, and 6 for each rank: raise the hard limit (ulimit -Hn)."};
}

Finding clock_of(const Machine& m) {
  std::string found = format_seconds(m.clock_read_seconds) + " to read";
  if (!m.clock_source.empty()) found += " (" + m.clock_source + ")";
  if (m.clock_read_seconds < kSlowClock) return {"clock", Verdict::kOk, found, ""};
  return {"clock", Verdict::kNote, found,
          "The kernel is asked each time: what a rank times of its actions costs more. A virtual machine's "
          "host decides that."};
}

bool is_loopback(const std::string& address) { return address.rfind("127.", 0) == 0 || address == "::1"; }

Finding name_of(const Machine& m) {
  const std::string found =
      m.name + (m.addresses.empty() ? " means no address" : " is " + join(m.addresses, ", "));
  if (!m.addresses.empty() && !std::all_of(m.addresses.begin(), m.addresses.end(), is_loopback))
    return {"name", Verdict::kOk, found, ""};
  return {
      "name", Verdict::kNote, found,
      "Ranks of other hosts do not reach this one by its name: --master-addr with an address of this host, "
      "or mend /etc/hosts. One host has no need of it."};
}

}  // namespace

std::vector<Finding> findings_of(const Machine& m) {
  const auto took = [](const Trial& trial) { return "a message in " + format_seconds(trial.seconds); };
  return {
      cores_of(m),
      binding_of(m),
      load_of(m),
      memory_of(m),
      shared_memory_of(m),
      of_trial("temporary", m.temporary_file, m.temporary_folder + " can be written",
               "verify and probe keep a folder there: give TMPDIR another one."),
      files_of(m),
      clock_of(m),
      name_of(m),
      {"arithmetic", Verdict::kOk, m.arithmetic, ""},
      {"GPU", Verdict::kOk, m.gpu.empty() ? "none" : join(m.gpu, "; "), ""},
      of_trial(
          "store", m.store, "two ranks meet in " + format_seconds(m.store.seconds),
          "Ranks find each other over TCP on loopback: is it up (ip addr), does a firewall shut its ports?"),
      of_trial(
          "Gloo", m.gloo, took(m.gloo),
          "Messages over TCP fail: is loopback up (ip addr), does a firewall shut its ports? One host with "
          "memory to share does without: --transport shm."),
      of_trial("shm", m.shm, took(m.shm), "Messages through shared memory fail: --transport gloo.",
               Verdict::kNote),
  };
}

}  // namespace pipewright
