#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "graph/error.h"
#include "graph/random.h"
#include "runtime/data/loader.h"

namespace pipewright {
namespace {

std::vector<int64_t> epoch_order(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> order;
  const int64_t count = sampler.minibatches_per_epoch();
  for (int64_t k = epoch * count; k < (epoch + 1) * count; ++k) {
    for (const int64_t index : sampler.indices(k)) order.push_back(index);
  }
  return order;
}

TEST_CASE("each epoch visits each sample at most once, in full minibatches") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const int64_t batch = 1 + static_cast<int64_t>(random() % 17),
                  size = static_cast<int64_t>(random() % 400);
    const bool shuffle = random() % 2;
    const Sampler sampler(size, batch, random(), shuffle);
    REQUIRE(sampler.minibatches_per_epoch() == size / batch);
    if (size < batch) continue;
    const auto epoch = static_cast<int64_t>(random() % 5);
    const std::vector<int64_t> order = epoch_order(sampler, epoch);
    const std::set<int64_t> distinct(order.begin(), order.end());
    REQUIRE(order.size() == static_cast<size_t>(size / batch * batch));
    REQUIRE(distinct.size() == order.size());
    REQUIRE(*distinct.begin() >= 0);
    REQUIRE(*distinct.rbegin() < size);
    if (!shuffle) REQUIRE(std::is_sorted(order.begin(), order.end()));
  }
}

TEST_CASE("a minibatch does not depend on what was asked before") {
  std::mt19937_64 random(2);
  const Sampler asked_often(103, 8, 7, true);
  for (int round = 0; round < 200; ++round) {
    const auto k = static_cast<int64_t>(random() % 100);
    REQUIRE(asked_often.indices(k) == Sampler(103, 8, 7, true).indices(k));
    REQUIRE(asked_often.epoch_of(k) == k / 12);
  }
}

TEST_CASE("the order differs by epoch and by seed") {
  const Sampler one(1000, 10, 1, true), two(1000, 10, 2, true);
  CHECK(epoch_order(one, 0) != epoch_order(one, 1));
  CHECK(epoch_order(one, 0) != epoch_order(two, 0));
  CHECK(epoch_order(one, 0) != epoch_order(Sampler(1000, 10, 1, false), 0));
  CHECK(epoch_order(one, 1) != epoch_order(two, 0));
}

TEST_CASE("every sample is as likely in every place") {
  // 6 samples in 12,000 epochs: each of the 36 (sample, place) counts is 2000 +- 41; six sigma.
  int count[6][6] = {};
  for (uint64_t seed = 0; seed < 12000; ++seed) {
    const std::vector<int64_t> order = Sampler(6, 6, seed, true).indices(0);
    for (size_t place = 0; place < 6; ++place) ++count[order[place]][place];
  }
  for (const auto& places : count) {
    for (const int times : places) CHECK(std::abs(times - 2000) < 250);
  }
}

TEST_CASE("the order of this release: a resumed run and another machine must see the same") {
  CHECK(Sampler(10, 10, 1, true).indices(0) == std::vector<int64_t>{2, 5, 0, 7, 1, 9, 8, 3, 4, 6});
  CHECK(Sampler(10, 10, 1, true).indices(1) == std::vector<int64_t>{3, 6, 5, 4, 0, 1, 9, 8, 7, 2});
}

TEST_CASE("a set smaller than a minibatch has none") {
  const Sampler sampler(7, 8, 0, true);
  CHECK(sampler.minibatches_per_epoch() == 0);
  CHECK_THROWS_AS(sampler.indices(0), CheckError);
  CHECK_THROWS_AS(sampler.epoch_of(0), CheckError);
}

TEST_CASE("keyed random numbers: bounds, moments, streams") {
  KeyedRandom random{1, 2, 3}, same{1, 2, 3}, other{1, 3, 2}, shorter{1, 2};
  CHECK(random.next() == same.next());
  CHECK(random.next() != other.next());
  CHECK(KeyedRandom{1, 2, 0}.next() != shorter.next());

  std::mt19937_64 bounds(3);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t bound = (bounds() >> (bounds() % 64)) | 1;
    REQUIRE(random.below(bound) < bound);
  }
  // Just above 2^63 nearly every second draw is rejected; without that the lower half would come twice as
  // often.
  const uint64_t bound = (uint64_t{1} << 63) + 1;
  int low = 0;
  for (int i = 0; i < 10000; ++i) low += random.below(bound) < bound / 2;
  CHECK(std::abs(low - 5000) < 300);

  double sum = 0, squares = 0, uniform = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = random.bell();
    sum += x;
    squares += x * x;
    const double u = random.uniform();
    REQUIRE((u >= 0 && u < 1));
    uniform += u;
  }
  CHECK(sum / 100000 == Approx(0).margin(0.02));
  CHECK(squares / 100000 == Approx(1).margin(0.02));
  CHECK(uniform / 100000 == Approx(0.5).margin(0.01));
}

}  // namespace
}  // namespace pipewright
