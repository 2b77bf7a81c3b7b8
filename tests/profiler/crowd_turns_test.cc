#include "profiler/crowd_turns.h"

#include <catch2/catch.hpp>

#include "profiler/other_load.h"

namespace pipewright::testing {
namespace {

/// A turn in which a pass takes 1 alone and `beside` beside others, all of it `slower` times as long.
CrowdTurn turn_of(double other_cores, double beside, double slower = 1) {
  CrowdTurn turn;
  turn.other_cores = other_cores;
  for (int i = 0; i < 4; ++i) {
    CrowdSeconds pass;
    pass.compute_alone = pass.update_alone = pass.replica_compute_alone = pass.replica_update_alone = slower;
    pass.compute_beside = pass.update_beside = pass.compute_by_turns = beside * slower;
    pass.replica_compute_in_step = pass.replica_update_in_step = beside * slower;
    pass.clock_alone = slower;
    pass.clock_beside = (beside + other_cores) * slower;
    turn.passes.push_back(pass);
  }
  turn.references = {slower, slower};
  return turn;
}

TEST_CASE("factors come of the quiet turns, however many others there are") {
  std::vector<CrowdTurn> turns = {turn_of(0.9, 2),    turn_of(0.01, 1.1), turn_of(1.2, 2.4),
                                  turn_of(0.02, 1.1), turn_of(0.8, 1.9),  turn_of(0, 1.1),
                                  turn_of(1, 2)};
  const ProfiledCrowd crowd = judged(turns).factors(2);
  CHECK(crowd.ranks == 2);
  for (const double factor : {crowd.compute_factor, crowd.update_factor, crowd.replicas_compute_factor,
                              crowd.replicas_update_factor, crowd.by_turns_compute_factor})
    CHECK(factor == Approx(1.1));
  CHECK(crowd.other_cores == Approx(0.01));
  CHECK(crowd.doubt().empty());
  CHECK(crowd.clock_factor > 2);  // by the clock of all of them: what the machine's other load made of it
}

TEST_CASE("where no turn was quiet the quietest count, and the profile says what could not be told apart") {
  const ProfiledCrowd crowd =
      judged({turn_of(0.9, 1.4), turn_of(0.5, 1.2), turn_of(0.6, 1.2), turn_of(0.7, 1.2)}).factors(3);
  CHECK(crowd.compute_factor == Approx(1.2));
  CHECK(crowd.other_cores == Approx(0.6));
  CHECK_THAT(crowd.doubt(), Catch::Equals("other programs used 0.6 cores meanwhile"));
}

TEST_CASE("a machine that is slower at one moment or on one core than at another is no quiet one") {
  const ProfiledCrowd crowd = judged({turn_of(0, 1.1), turn_of(0, 1.1, 1.4), turn_of(0, 1.1)}).factors(2);
  CHECK(crowd.reference_spread == Approx(0.4));
  CHECK_THAT(crowd.doubt(), Catch::Contains("up to 1.40 times as long at one moment"));
  CHECK(judged({turn_of(0, 0.9), turn_of(0, 0.9), turn_of(0, 0.9)}).factors(2).compute_factor == 1);
  CHECK(judged({turn_of(0, 1.1), turn_of(0, 1.1, 1.1), turn_of(0, 1.1)}).factors(2).doubt().empty());
}

TEST_CASE("turns go on for three quiet ones, three times as long as they must at most") {
  const CrowdTurn quiet = turn_of(0.05, 1), busy = turn_of(0.5, 1);
  CrowdTurn unknown = quiet;
  unknown.other_cores.reset();
  CHECK(turns_go_on({}, 9, 0));
  CHECK(turns_go_on({quiet, quiet}, 9, 0));
  CHECK_FALSE(turns_go_on({busy, busy, busy}, 9, 0));  // exactly so many were asked for
  CHECK(turns_go_on({quiet, quiet, quiet}, 1.9, 2));
  CHECK_FALSE(turns_go_on({quiet, quiet, quiet}, 2, 2));
  CHECK_FALSE(turns_go_on({unknown, unknown, unknown}, 2, 2));
  CHECK(turns_go_on({quiet, busy, quiet}, 5.9, 2));
  CHECK_FALSE(turns_go_on({quiet, busy, quiet}, 6, 2));
  CHECK_FALSE(turns_go_on({quiet, busy, quiet, quiet}, 3, 2));
}

TEST_CASE("of several parts seconds add up, and the worst of what was in the way counts") {
  CrowdFound found = judged({turn_of(0.1, 2), turn_of(0.1, 2), turn_of(0.1, 2)});
  found += judged({turn_of(0.4, 1, 3), turn_of(0.4, 1, 3), turn_of(0.4, 1, 3)});
  const ProfiledCrowd crowd = found.factors(2);
  CHECK(crowd.compute_factor == Approx((2.0 + 3) / 4));
  CHECK(crowd.other_cores == Approx(0.4));
}

TEST_CASE("other programs had what the cores did beyond this process' own work") {
  const auto reading = [](double at, double own, double busy, double stolen) {
    LoadReading made{at, own, {}};
    for (const int64_t core : {0, 1, 2}) made.host.cores[core] = {busy, stolen};
    return made;
  };
  const LoadReading first = reading(10, 1, 100, 0), second = reading(12, 2.5, 101.5, 0.25);
  CHECK(other_cores(first, second, {0, 1}).value() == Approx((2 * 1.75 - 1.5) / 2));
  CHECK(other_cores(first, second, {2}).value() == Approx((1.75 - 1.5) / 2));
  CHECK(other_cores(first, reading(12, 2.5, 101, 0), {2}) == 0.0);  // ticks are rough
  CHECK_FALSE(other_cores(first, second, {0, 7}));
  CHECK_FALSE(other_cores(first, first, {0}));
  CHECK_FALSE(other_cores({1, 0, {}}, {2, 1, {}}, {0}));
}

}  // namespace
}  // namespace pipewright::testing
