// What `doctor` makes of a machine's facts, and of hosts, for which a script stands as the remote shell.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <functional>

#include "graph/document.h"
#include "runtime/doctor/hosts_checkup.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Machine good_machine() {
  Machine m;
  m.name = "node1";
  m.program = "pipewright 1";
  m.clock_seconds = 1e9;
  m.cores = m.cores_of_all = 8;
  m.binds = true;
  m.load = 0.1;
  m.memory_bytes = m.free_memory_bytes = 32 * kGiB;
  m.shared_memory_bytes = m.free_shared_memory_bytes = 16 * kGiB;
  m.temporary_folder = "/tmp";
  m.open_files = 1024;
  m.clock_read_seconds = 25e-9;
  m.clock_source = "tsc";
  m.addresses = {"10.0.0.1"};
  m.arithmetic = "AVX2";
  return m;
}

// The only finding that is not well.
Finding complaint_of(const Machine& machine) {
  Finding found;
  int complaints = 0;
  for (const Finding& each : findings_of(machine)) {
    if (each.verdict == Verdict::kOk) continue;
    found = each;
    ++complaints;
  }
  REQUIRE(complaints == 1);
  return found;
}

}  // namespace

TEST_CASE("doctor: each thing that is not as it should be is named, with what to do, and nothing else is") {
  for (const Finding& each : findings_of(good_machine())) {
    CHECK(each.verdict == Verdict::kOk);
    CHECK_FALSE(each.what.empty());
    CHECK_FALSE(each.found.empty());
    CHECK(each.remedy.empty());
  }
  struct Case {
    std::function<void(Machine*)> harm;
    std::string what;
    Verdict verdict;
    std::string remedy;
  };
  const std::vector<Case> cases = {
      {[](Machine* m) { m->cores_of_quota = 2.5; }, "cores", Verdict::kNote, "--ranks 2"},
      {[](Machine* m) { m->cores_of_quota = 0.5; }, "cores", Verdict::kNote, "--ranks 1"},
      {[](Machine* m) { m->cores = 1; }, "cores", Verdict::kNote, "take turns"},
      {[](Machine* m) { m->binds = false; }, "binding", Verdict::kNote, "all the same"},
      {[](Machine* m) { m->load = 3; }, "load", Verdict::kNote, "top"},
      {[](Machine* m) { m->free_memory_bytes = kGiB / 2; }, "memory", Verdict::kNote, "check"},
      {[](Machine* m) { m->shared_memory.failure = "Permission denied"; }, "/dev/shm", Verdict::kNote,
       "--on-loss end"},
      {[](Machine* m) { m->free_shared_memory_bytes = kGiB / 4; }, "/dev/shm", Verdict::kNote, "--shm-size"},
      {[](Machine* m) { m->temporary_file.failure = "No space left"; }, "temporary", Verdict::kWrong,
       "TMPDIR"},
      {[](Machine* m) { m->open_files = 64; }, "files", Verdict::kWrong, "ulimit"},
      {[](Machine* m) { m->clock_read_seconds = 1e-6; }, "clock", Verdict::kNote, "kernel"},
      {[](Machine* m) { m->addresses = {"127.0.1.1"}; }, "name", Verdict::kNote, "--master-addr"},
      {[](Machine* m) { m->addresses.clear(); }, "name", Verdict::kNote, "/etc/hosts"},
      {[](Machine* m) { m->store.failure = "cannot be reached"; }, "store", Verdict::kWrong, "firewall"},
      {[](Machine* m) { m->gloo.failure = "cannot connect"; }, "Gloo", Verdict::kWrong, "--transport shm"},
      {[](Machine* m) { m->shm.failure = "cannot be mapped"; }, "shm", Verdict::kNote, "--transport gloo"},
  };
  for (const Case& each : cases) {
    Machine machine = good_machine();
    each.harm(&machine);
    CAPTURE(each.what, each.remedy);
    const Finding complaint = complaint_of(machine);
    CHECK(complaint.what == each.what);
    CHECK(complaint.verdict == each.verdict);
    CHECK_THAT(complaint.remedy, Catch::Contains(each.remedy));
  }
}

TEST_CASE("doctor: this machine's store, Gloo and shared memory carry messages, and its facts make sense") {
  const Machine machine = look_at_machine("pipewright 1");
  CHECK(machine.store.failure == "");
  CHECK(machine.gloo.failure == "");
  CHECK(machine.shm.failure == "");
  CHECK(machine.shared_memory.failure == "");
  CHECK(machine.cores >= 1);
  CHECK(machine.cores_of_all >= machine.cores);
  CHECK(machine.free_memory_bytes <= machine.memory_bytes);
  CHECK(machine.clock_read_seconds > 0);
}

TEST_CASE("doctor: a checkup survives its document, and what is none is refused") {
  Machine machine = good_machine();
  machine.store.failure = "\"refused\"\n";
  const Checkup before = checkup_of(machine);
  const Checkup after = checkup_from(text_of(before), "here");
  CHECK(text_of(after) == text_of(before));
  CHECK(after.findings.size() == before.findings.size());
  for (const std::string text : {"", "no", "{}", "{\"schema\":\"pipewright.doctor/2\"}"})
    CHECK_THAT(error_of<InputError>([&] { checkup_from(text, "node2: doctor"); }),
               Catch::StartsWith("node2: doctor"));
}

TEST_CASE("doctor: hosts that are not reached, have no program or another one, or stand elsewhere") {
  const TemporaryFolder folder;
  const Checkup here = checkup_of(good_machine());
  Checkup there = here;
  there.findings.clear();
  there.clock_seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  // Answers as the host of that name would.
  const auto answer = [&](const std::string& host, const Checkup& checkup, const std::string& shared) {
    write_file(folder / host, shared + "\n" + text_of(checkup));
  };
  answer("well", there, "shared");
  answer("apart", there, "apart");
  Checkup other = there;
  other.program = "pipewright 0";
  answer("old", other, "shared");
  other = there;
  other.clock_seconds -= 3600;
  answer("late", other, "shared");
  write_file(folder / "bare", "shared\n");
  write_file(folder / "noise", "shared\nWelcome!\n");
  write_file(folder / "rsh", "#!/bin/sh\ncat '" + folder.path().string() + "'/$1 2>/dev/null\n");
  std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
  const std::vector<std::string> hosts = {"well", "apart", "old", "late", "bare", "noise", "down"};
  const auto checkups = checkups_of_hosts(here, hosts, (folder / "rsh").string(), std::chrono::seconds(20));
  REQUIRE(checkups.size() == hosts.size());
  const auto complaints = [&](size_t host) {
    std::string text;
    CHECK(checkups[host].host == hosts[host]);
    for (const Finding& each : checkups[host].findings) {
      if (each.verdict == Verdict::kOk) continue;
      text += (each.verdict == Verdict::kWrong ? "wrong " : "note ") + each.what + ";";
      CHECK_FALSE(each.remedy.empty());
    }
    return text;
  };
  CHECK(complaints(0) == "");
  CHECK(complaints(1) == "note folder;");
  CHECK(complaints(2) == "wrong program;");
  CHECK(complaints(3) == "note clocks;");
  CHECK(complaints(4) == "wrong program;");
  CHECK(complaints(5) == "wrong program;");
  CHECK(complaints(6) == "wrong reached;");
}

TEST_CASE("doctor: a host that does not answer is given up in time") {
  const TemporaryFolder folder;
  write_file(folder / "rsh", "#!/bin/sh\nexec sleep 60\n");
  std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
  const auto checkups = checkups_of_hosts(checkup_of(good_machine()), {"silent"}, (folder / "rsh").string(),
                                          std::chrono::milliseconds(300));
  REQUIRE(checkups.front().findings.size() == 1);
  CHECK(checkups.front().findings.front().what == "reached");
}
