// What a launcher does when ranks are lost: each rule by hand.
#include "runtime/coordinator/attempts.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "tests/runtime/coordinator/command_text.h"

using namespace pipewright;
using pipewright::testing::text_of;

namespace {

AttemptRules rules_of(OnLoss on_loss, int64_t ranks, int64_t fewest = 1, int64_t most_fruitless = 3) {
  return {on_loss, ranks, fewest, most_fruitless};
}

// A job that has begun with slots 0, 1, ...
struct Begins : Attempts {
  Begins(const AttemptRules& rules, int64_t slots) : Attempts(rules) {
    for (Slot slot = 0; slot < slots; ++slot) CHECK(says(SlotAdded{slot}) == "");
    first = says(Begun{});
  }
  std::string says(const LauncherEvent& event) { return text_of(take(event)); }
  std::string ends(int64_t attempt, Slot slot, Ending how) { return says(ProcessEnded{attempt, slot, how}); }
  // All of them end alike: what is said of the last.
  std::string all_end(int64_t attempt, const std::vector<Slot>& slots, Ending how) {
    for (size_t k = 0; k + 1 < slots.size(); ++k) CHECK(ends(attempt, slots[k], how) == "");
    return ends(attempt, slots.back(), how);
  }
  std::string first;
};

constexpr auto kDone = Ending::kDone, kLost = Ending::kLost, kFailed = Ending::kFailed,
               kFollowed = Ending::kFollowed;

}  // namespace

TEST_CASE("attempts: the first one has the first slots, and a run to the end is one attempt") {
  for (const OnLoss on_loss : {OnLoss::kEnd, OnLoss::kRestart, OnLoss::kContinue}) {
    Begins job(rules_of(on_loss, 3), 5);
    CHECK(job.first == "start 0: 0 1 2");
    CHECK(job.attempt() == 0);
    CHECK(job.says(StateKept{10}) == "");
    CHECK(job.all_end(0, {2, 0, 1}, kDone) == "end done");
    CHECK(job.ended());
  }
}

TEST_CASE("attempts: a start with too few slots ends the job, and says how many are missing") {
  CHECK(Begins(rules_of(OnLoss::kEnd, 2), 1).first == "end lost: 1 place for a rank is there, 2 are needed");
  CHECK(Begins(rules_of(OnLoss::kRestart, 1), 0).first ==
        "end lost: no place for a rank is there, 1 is needed");
  CHECK(Begins(rules_of(OnLoss::kContinue, 4, 3), 2).first ==
        "end lost: 2 places for ranks are there, 3 are needed");
  CHECK(Begins(rules_of(OnLoss::kContinue, 4, 3), 3).first == "start 0: 0 1 2");
}

TEST_CASE("attempts: rules that no job can follow are refused") {
  CHECK_THROWS_AS(Attempts(rules_of(OnLoss::kEnd, 0)), CheckError);
  CHECK_THROWS_AS(Attempts(rules_of(OnLoss::kContinue, 2, 3)), CheckError);
  CHECK_THROWS_AS(Attempts(rules_of(OnLoss::kContinue, 2, 0)), CheckError);
  CHECK_THROWS_AS(Attempts(rules_of(OnLoss::kRestart, 2, 1, 0)), CheckError);
}

TEST_CASE(
    "attempts: end: a loss stops nothing, and the job is lost when the others have ended by themselves") {
  Begins job(rules_of(OnLoss::kEnd, 3), 4);
  CHECK(job.ends(0, 1, kLost) == "");
  CHECK(job.says(LossAnnounced{0, 1}) == "");
  CHECK(job.says(SlotAdded{7}) == "");
  CHECK(job.all_end(0, {0, 2}, kFollowed) == "end lost");
  Begins failed(rules_of(OnLoss::kEnd, 3), 3);
  CHECK(failed.ends(0, 1, kLost) == "");
  CHECK(failed.ends(0, 0, kFailed) == "");
  CHECK(failed.ends(0, 2, kFollowed) == "end failed");
}

TEST_CASE("attempts: restart: the same slots, spares for those that are gone") {
  Begins job(rules_of(OnLoss::kRestart, 3), 4);
  CHECK(job.ends(0, 1, kLost) == "kill 0");
  CHECK(job.all_end(0, {0, 2}, kLost) == "start 1: 0 1 2");
  CHECK(job.says(StateKept{5}) == "");
  CHECK(job.says(SlotGone{1}) == "");
  CHECK(job.ends(1, 1, kLost) == "kill 1");
  CHECK(job.all_end(1, {0, 2}, kLost) == "start 2: 0 3 2");
  CHECK(job.says(StateKept{6}) == "");
  CHECK(job.says(SlotGone{0}) == "");
  CHECK(job.ends(2, 0, kLost) == "kill 2");
  CHECK(job.all_end(2, {3, 2}, kLost) == "end lost: 2 places for ranks are left, 3 are needed");
}

TEST_CASE("attempts: restart: a slot that went silent waits behind the spares, once") {
  Begins job(rules_of(OnLoss::kRestart, 2), 3);
  CHECK(job.says(LossAnnounced{0, 1}) == "kill 0");
  CHECK(job.all_end(0, {0, 1}, kLost) == "start 1: 0 2");
  // There is no other: whoever goes silent is started again.
  CHECK(job.says(SlotGone{1}) == "");
  CHECK(job.says(LossAnnounced{1, 0}) == "kill 1");
  CHECK(job.all_end(1, {0, 2}, kLost) == "start 2: 0 2");
  // What is killed behind that has not gone silent.
  CHECK(job.says(SlotAdded{1}) == "");
  CHECK(job.says(StateKept{5}) == "");
  CHECK(job.ends(2, 0, kLost) == "kill 2");
  CHECK(job.says(LossAnnounced{2, 2}) == "");
  CHECK(job.ends(2, 2, kLost) == "start 3: 0 2");
}

TEST_CASE("attempts: restart: a slot that is gone is used again once it is added, and a new one is a spare") {
  Begins job(rules_of(OnLoss::kRestart, 2), 2);
  CHECK(job.says(SlotAdded{9}) == "");
  CHECK(job.says(SlotGone{0}) == "");
  CHECK(job.says(SlotGone{9}) == "");
  CHECK(job.ends(0, 0, kLost) == "kill 0");
  CHECK(job.says(SlotAdded{0}) == "");
  CHECK(job.ends(0, 1, kLost) == "start 1: 0 1");
}

TEST_CASE("attempts: continue: those that are left, in their order, down to the fewest") {
  Begins job(rules_of(OnLoss::kContinue, 4, 2), 4);
  CHECK(job.ends(0, 1, kLost) == "kill 0");
  CHECK(job.all_end(0, {0, 2, 3}, kLost) == "start 1: 0 2 3");
  CHECK(job.says(StateKept{5}) == "");
  CHECK(job.says(LossAnnounced{1, 0}) == "kill 1");
  CHECK(job.all_end(1, {0, 2, 3}, kLost) == "start 2: 2 3");
  CHECK(job.says(StateKept{6}) == "");
  CHECK(job.ends(2, 3, kLost) == "kill 2");
  CHECK(job.ends(2, 2, kLost) == "end lost: 1 place for a rank is left, 2 are needed");
}

TEST_CASE("attempts: continue: a spare takes the rank that is free, and one process alone needs no stop") {
  Begins job(rules_of(OnLoss::kContinue, 3), 5);
  CHECK(job.ends(0, 0, kLost) == "kill 0");
  CHECK(job.all_end(0, {1, 2}, kLost) == "start 1: 3 1 2");
  CHECK(job.says(StateKept{1}) == "");
  CHECK(job.says(SlotGone{3}) == "");
  CHECK(job.ends(1, 1, kLost) == "kill 1");
  CHECK(job.all_end(1, {3, 2}, kLost) == "start 2: 4 2");
  CHECK(job.says(StateKept{2}) == "");
  CHECK(job.says(SlotGone{2}) == "");
  CHECK(job.says(LossAnnounced{2, std::nullopt}) == "kill 2");
  CHECK(job.all_end(2, {4, 2}, kLost) == "start 3: 4");
  CHECK(job.ends(3, 4, kLost) == "end lost: no place for a rank is left, 1 is needed");
}

TEST_CASE("attempts: continue: a slot that comes drains an attempt of too few, and behind a loss is used") {
  Begins job(rules_of(OnLoss::kContinue, 3), 3);
  CHECK(job.ends(0, 1, kLost) == "kill 0");
  CHECK(job.all_end(0, {0, 2}, kLost) == "start 1: 0 2");
  CHECK(job.says(SlotAdded{2}) == "");  // it is there
  CHECK(job.says(SlotAdded{1}) == "drain 1");
  CHECK(job.says(SlotAdded{8}) == "");
  CHECK(job.says(StateKept{7}) == "");
  CHECK(job.all_end(1, {2, 0}, kFollowed) == "start 2: 0 2 1");
  CHECK(job.says(SlotAdded{9}) == "");  // a spare, as 8
  CHECK(job.ends(2, 0, kLost) == "kill 2");
  CHECK(job.says(SlotAdded{0}) == "");
  CHECK(job.all_end(2, {2, 1}, kLost) == "start 3: 0 2 1");
}

TEST_CASE("attempts: continue: no drain for a slot that adds no rank, nor where a process has ended") {
  Begins job(rules_of(OnLoss::kContinue, 3), 2);
  CHECK(job.says(SlotGone{1}) == "");
  CHECK(job.says(SlotAdded{5}) == "");  // instead of 1, which still runs
  CHECK(job.ends(0, 0, kDone) == "");
  CHECK(job.says(SlotAdded{6}) == "");
  CHECK(job.ends(0, 1, kLost) == "start 1: 0 5 6");
}

TEST_CASE("attempts: a loss, or an error, while an attempt is drained has it killed") {
  Begins lost(rules_of(OnLoss::kContinue, 3), 2);
  CHECK(lost.says(SlotAdded{2}) == "drain 0");
  CHECK(lost.ends(0, 0, kLost) == "kill 0");
  CHECK(lost.ends(0, 1, kFollowed) == "start 1: 2 1");
  Begins hangs(rules_of(OnLoss::kContinue, 3), 2);
  CHECK(hangs.says(SlotAdded{2}) == "drain 0");
  CHECK(hangs.ends(0, 0, kFollowed) == "");
  CHECK(hangs.says(LossAnnounced{0, 1}) == "kill 0");
  CHECK(hangs.ends(0, 1, kLost) == "start 1: 0 2");
  Begins fails(rules_of(OnLoss::kContinue, 3), 2);
  CHECK(fails.says(SlotAdded{2}) == "drain 0");
  CHECK(fails.ends(0, 0, kFailed) == "kill 0");
  CHECK(fails.ends(0, 1, kLost) == "end failed");
}

TEST_CASE("attempts: an error ends the job, but not one that a killed process tells") {
  Begins fails(rules_of(OnLoss::kRestart, 3), 3);
  CHECK(fails.ends(0, 1, kFailed) == "kill 0");
  CHECK(fails.ends(0, 2, kFailed) == "");
  CHECK(fails.ends(0, 0, kDone) == "end failed");
  Begins killed(rules_of(OnLoss::kRestart, 3), 3);
  CHECK(killed.ends(0, 1, kLost) == "kill 0");
  CHECK(killed.all_end(0, {0, 2}, kFailed) == "start 1: 0 1 2");
}

TEST_CASE("attempts: what ends behind the kill, or is announced then, keeps its slot") {
  Begins job(rules_of(OnLoss::kContinue, 4), 4);
  CHECK(job.says(LossAnnounced{0, std::nullopt}) == "kill 0");
  CHECK(job.says(LossAnnounced{0, 2}) == "");
  CHECK(job.all_end(0, {3, 2, 1, 0}, kLost) == "start 1: 0 1 2 3");
}

TEST_CASE("attempts: a process that follows nobody knows what is a loss of nobody") {
  Begins job(rules_of(OnLoss::kContinue, 3), 3);
  CHECK(job.ends(0, 1, kFollowed) == "kill 0");
  CHECK(job.all_end(0, {0, 2}, kLost) == "start 1: 0 1 2");
}

TEST_CASE("attempts: some are done, another is lost: the end is repeated") {
  Begins job(rules_of(OnLoss::kContinue, 3), 3);
  CHECK(job.all_end(0, {0, 1}, kDone) == "");
  CHECK(job.ends(0, 2, kLost) == "start 1: 0 1");
  CHECK(job.ends(1, 0, kDone) == "");
  CHECK(job.says(LossAnnounced{1, 0}) == "kill 1");  // it is done, and so is its place there
  CHECK(job.ends(1, 1, kLost) == "start 2: 0 1");
  CHECK(job.says(LossAnnounced{2, std::nullopt}) == "kill 2");
  CHECK(job.all_end(2, {0, 1}, kDone) == "end done");
}

TEST_CASE("attempts: so many in a row without newer state end the job, drained ones apart") {
  Begins job(rules_of(OnLoss::kRestart, 1, 1, 3), 1);
  CHECK(job.says(StateKept{10}) == "");
  CHECK(job.ends(0, 0, kLost) == "start 1: 0");
  CHECK(job.says(StateKept{10}) == "");
  CHECK(job.ends(1, 0, kLost) == "start 2: 0");
  CHECK(job.says(StateKept{9}) == "");
  CHECK(job.ends(2, 0, kLost) == "start 3: 0");
  CHECK(job.says(StateKept{11}) == "");
  CHECK(job.ends(3, 0, kLost) == "start 4: 0");
  CHECK(job.says(StateKept{11}) == "");
  CHECK(job.ends(4, 0, kLost) == "start 5: 0");
  CHECK(job.says(StateKept{3}) == "");
  CHECK(job.ends(5, 0, kLost) == "start 6: 0");
  CHECK(job.ends(6, 0, kLost) == "end lost: 3 attempts in a row were lost before newer state was kept");
  CHECK(Begins(rules_of(OnLoss::kRestart, 1, 1, 1), 1).ends(0, 0, kLost) ==
        "end lost: an attempt was lost before newer state was kept");

  // What went with a host is done again: that counts.
  Begins back(rules_of(OnLoss::kRestart, 1, 1, 2), 1);
  CHECK(back.says(StateKept{100}) == "");
  CHECK(back.ends(0, 0, kLost) == "start 1: 0");
  CHECK(back.says(StateKept{50}) == "");
  CHECK(back.ends(1, 0, kLost) == "start 2: 0");
  CHECK(back.says(StateKept{60}) == "");
  CHECK(back.ends(2, 0, kLost) == "start 3: 0");
  CHECK(back.ends(3, 0, kLost) == "start 4: 0");
  CHECK(back.ends(4, 0, kLost).rfind("end lost", 0) == 0);

  Begins drained(rules_of(OnLoss::kContinue, 3, 1, 2), 1);
  CHECK(drained.says(SlotAdded{1}) == "drain 0");
  CHECK(drained.ends(0, 0, kFollowed) == "start 1: 0 1");
  CHECK(drained.says(SlotAdded{2}) == "drain 1");
  CHECK(drained.all_end(1, {0, 1}, kFollowed) == "start 2: 0 1 2");
  CHECK(drained.ends(2, 0, kLost) == "kill 2");
  CHECK(drained.all_end(2, {1, 2}, kLost) == "start 3: 1 2");
  CHECK(drained.says(SlotAdded{0}) == "drain 3");
  CHECK(drained.all_end(3, {1, 2}, kFollowed) == "start 4: 1 2 0");
  CHECK(drained.ends(4, 0, kLost) == "kill 4");
  CHECK(drained.all_end(4, {1, 2}, kLost) ==
        "end lost: 2 attempts in a row were lost before newer state was kept");
}

TEST_CASE("attempts: an interrupted job starts nothing more, and is done only if all of it is") {
  Begins job(rules_of(OnLoss::kContinue, 3), 2);
  CHECK(job.says(Interrupted{}) == "");
  CHECK(job.says(SlotAdded{2}) == "");
  CHECK(job.all_end(0, {0, 1}, kFollowed) == "end interrupted");
  Begins done(rules_of(OnLoss::kRestart, 2), 2);
  CHECK(done.says(Interrupted{}) == "");
  CHECK(done.all_end(0, {0, 1}, kDone) == "end done");
  Begins lost(rules_of(OnLoss::kRestart, 2), 2);
  CHECK(lost.says(Interrupted{}) == "");
  CHECK(lost.ends(0, 0, kLost) == "kill 0");  // the others may wait for it
  CHECK(lost.ends(0, 1, kFollowed) == "end interrupted");
  Begins stopping(rules_of(OnLoss::kRestart, 2), 2);
  CHECK(stopping.ends(0, 0, kLost) == "kill 0");
  CHECK(stopping.says(Interrupted{}) == "");
  CHECK(stopping.ends(0, 1, kLost) == "end interrupted");
  Begins fails(rules_of(OnLoss::kRestart, 2), 2);
  CHECK(fails.says(Interrupted{}) == "");
  CHECK(fails.ends(0, 0, kFailed) == "kill 0");
  CHECK(fails.ends(0, 1, kLost) == "end failed");
  Attempts before(rules_of(OnLoss::kRestart, 2));
  CHECK(text_of(before.take(Interrupted{})) == "end interrupted");
  CHECK(text_of(before.take(Begun{})) == "");
}

TEST_CASE("attempts: events that come twice, late, of no attempt or behind the end have no effect") {
  Attempts early(rules_of(OnLoss::kRestart, 2));
  CHECK(text_of(early.take(ProcessEnded{-1, 0, kLost})) == "");
  CHECK(text_of(early.take(LossAnnounced{0, 0})) == "");
  Begins job(rules_of(OnLoss::kContinue, 3), 3);
  CHECK(job.says(Begun{}) == "");
  CHECK(job.ends(1, 0, kLost) == "");
  CHECK(job.ends(0, 3, kLost) == "");
  CHECK(job.ends(0, 0, kLost) == "kill 0");
  CHECK(job.ends(0, 0, kFailed) == "");
  CHECK(job.ends(0, 1, kLost) == "");
  CHECK(job.ends(0, 1, kLost) == "");
  CHECK(job.ends(0, 2, kLost) == "start 1: 1 2");
  CHECK(job.ends(0, 1, kLost) == "");
  CHECK(job.says(LossAnnounced{0, 1}) == "");
  CHECK(job.all_end(1, {1, 2}, kDone) == "end done");
  for (const LauncherEvent& event :
       {LauncherEvent(SlotAdded{0}), LauncherEvent(SlotGone{1}), LauncherEvent(Begun{}),
        LauncherEvent(ProcessEnded{1, 1, kLost}), LauncherEvent(LossAnnounced{1, 1}),
        LauncherEvent(StateKept{99}), LauncherEvent(Interrupted{})})
    CHECK(job.says(event) == "");
}
