#include "runtime/data/loader.h"

#include <ATen/ATen.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "graph/error.h"

namespace pipewright {
namespace {

// Sample i: "x" float32 (3) = i, epoch, i * epoch; "y" int64 () = 10 i. Reading a sample of `broken` throws.
class NumberSet : public Dataset {
 public:
  int64_t size() const override { return 1000; }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return 10000; }
  void read(int64_t index, size_t field, SampleKey key, void* into) const override {
    ++reads;
    if (broken.count(index) > 0) throw RunError("sample " + std::to_string(index) + " is broken");
    if (field == 0) {
      float* out = static_cast<float*>(into);
      out[0] = static_cast<float>(index);
      out[1] = static_cast<float>(key.epoch);
      out[2] = static_cast<float>(index * key.epoch);
    } else {
      *static_cast<int64_t*>(into) = 10 * index;
    }
  }

  std::set<int64_t> broken;
  mutable std::atomic<int> reads = 0;

 private:
  std::vector<DataField> fields_ = {{"x", {"float32", {3}}}, {"y", {"int64", {}}}};
};

std::vector<LoadRequest> random_requests(std::mt19937_64& random, size_t count) {
  std::vector<LoadRequest> requests(count);
  for (LoadRequest& request : requests) {
    request.key = {random(), static_cast<int64_t>(random() % 10)};
    request.indices.resize(random() % 6);
    for (int64_t& index : request.indices) index = static_cast<int64_t>(random() % 1000);
  }
  return requests;
}

TEST_CASE("minibatches come in order, equal to direct reads, for any workers and ahead") {
  std::mt19937_64 random(1);
  const NumberSet numbers;
  for (int round = 0; round < 150; ++round) {
    const std::vector<LoadRequest> requests = random_requests(random, random() % 30);
    const auto workers = static_cast<int64_t>(random() % 5), ahead = static_cast<int64_t>(random() % 5);
    Loader loader(numbers, {0, 1}, requests, {workers}, ahead);
    for (const LoadRequest& request : requests) {
      const std::vector<at::Tensor> got = loader.next();
      const auto samples = static_cast<int64_t>(request.indices.size());
      REQUIRE(got.size() == 2);
      REQUIRE(got[0].sizes() == at::IntArrayRef({samples, 3}));
      REQUIRE(got[1].sizes() == at::IntArrayRef({samples}));
      REQUIRE(got[0].scalar_type() == at::kFloat);
      REQUIRE(got[1].scalar_type() == at::kLong);
      for (int64_t i = 0; i < samples; ++i) {
        float x[3];
        int64_t y = 0;
        numbers.read(request.indices[static_cast<size_t>(i)], 0, request.key, x);
        numbers.read(request.indices[static_cast<size_t>(i)], 1, request.key, &y);
        REQUIRE(std::equal(x, x + 3, got[0].const_data_ptr<float>() + 3 * i));
        REQUIRE(got[1].const_data_ptr<int64_t>()[i] == y);
      }
    }
    REQUIRE_THROWS_AS(loader.next(), CheckError);
  }
}

TEST_CASE("only the fields asked for are read, in the order asked for, tensors are fresh and aligned") {
  const NumberSet numbers;
  for (const int64_t workers : {0, 2}) {
    Loader loader(numbers, {1}, std::vector<LoadRequest>{{{3, 4}, {}}, {{3, 4}, {}}}, {workers}, 2);
    const at::Tensor first = loader.next().at(0), second = loader.next().at(0);
    CHECK(first.equal(second));
    CHECK(first.const_data_ptr() != second.const_data_ptr());
    CHECK(reinterpret_cast<uintptr_t>(first.const_data_ptr()) % 64 == 0);
    CHECK(first.const_data_ptr<int64_t>()[1] == 40);
  }
  CHECK(numbers.reads == 8);
  CHECK_THROWS_AS(Loader(numbers, {2}, std::vector<LoadRequest>{}, {0}, 0), CheckError);
}

TEST_CASE("an exception is rethrown by the next() it belongs to and spares the others") {
  NumberSet numbers;
  numbers.broken = {7};
  const std::vector<LoadRequest> requests = {{{1}, {}}, {{6, 7, 8}, {}}, {{2}, {}}, {{1000}, {}}, {{3}, {}}};
  for (const int64_t workers : {0, 1, 3}) {
    Loader loader(numbers, {0}, requests, {workers}, 4);
    CHECK(loader.next()[0].const_data_ptr<float>()[0] == 1);
    CHECK_THROWS_WITH(loader.next(), "sample 7 is broken");
    CHECK(loader.next()[0].const_data_ptr<float>()[0] == 2);
    CHECK_THROWS_AS(loader.next(), CheckError);  // no such sample
    CHECK(loader.next()[0].const_data_ptr<float>()[0] == 3);
    CHECK_THROWS_AS(loader.next(), CheckError);  // no such request
  }
}

TEST_CASE("a source of requests is asked in order and no further ahead than allowed") {
  const NumberSet numbers;
  for (const int64_t workers : {0, 1, 4}) {
    std::atomic<int64_t> asked = 0;
    Loader loader(
        numbers, {1},
        [&]() -> std::optional<LoadRequest> {
          if (asked == 20) return std::nullopt;
          return LoadRequest{{asked++}, {}};
        },
        {workers}, 3);
    for (int64_t i = 0; i < 20; ++i) {
      CHECK(asked <= i + 3);
      CHECK(loader.next()[0].const_data_ptr<int64_t>()[0] == 10 * i);
    }
    CHECK_THROWS_AS(loader.next(), CheckError);
  }
}

TEST_CASE("an exception of the source comes after the requests before it") {
  const NumberSet numbers;
  for (const int64_t workers : {0, 1, 4}) {
    int64_t asked = 0;
    Loader loader(
        numbers, {1},
        [&]() -> std::optional<LoadRequest> {
          if (asked == 2) throw RunError("no more plans");
          return LoadRequest{{asked++}, {}};
        },
        {workers}, 4);
    CHECK(loader.next()[0].const_data_ptr<int64_t>()[0] == 0);
    CHECK(loader.next()[0].const_data_ptr<int64_t>()[0] == 10);
    CHECK_THROWS_WITH(loader.next(), "no more plans");
    CHECK_THROWS_AS(loader.next(), CheckError);
  }
}

// Reading waits until the test opens the gate.
class Gated : public NumberSet {
 public:
  void read(int64_t index, size_t field, SampleKey key, void* into) const override {
    {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
    }
    NumberSet::read(index, field, key, into);
  }
  void await_readers(int count) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= count; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int waiting_ = 0;
  bool open_ = false;
};

TEST_CASE("the destructor does not wait for minibatches nobody asked for") {
  const std::vector<LoadRequest> requests(100, LoadRequest{{1, 2, 3, 4}, {}});
  SECTION("workers blocked because enough was made ahead") {
    const NumberSet numbers;
    { Loader loader(numbers, {0}, requests, {3}, 2); }
    CHECK(numbers.reads <= 8);
  }
  SECTION("workers in the middle of a minibatch") {
    Gated numbers;
    std::thread opener;
    {
      Loader loader(numbers, {0}, requests, {2}, 10);
      numbers.await_readers(2);
      // Opens only when the destructor below is likely to be at work; correct in any order.
      opener = std::thread([&] { numbers.open(); });
    }
    opener.join();
    CHECK(numbers.reads <= 40);
  }
  SECTION("some were taken, some not") {
    const NumberSet numbers;
    {
      Loader loader(numbers, {0}, requests, {4}, 3);
      for (int i = 0; i < 5; ++i) loader.next();
    }
    CHECK(numbers.reads <= 4 * 8);
  }
}

TEST_CASE("several workers make several minibatches at once") {
  Gated numbers;
  const std::vector<LoadRequest> requests(3, LoadRequest{{1}, {}});
  Loader loader(numbers, {0}, requests, {3}, 3);
  numbers.await_readers(3);  // hangs if they took turns
  numbers.open();
  for (int i = 0; i < 3; ++i) CHECK(loader.next().size() == 1);
}

TEST_CASE("several workers make one minibatch") {
  Gated numbers;
  Loader loader(numbers, {0}, std::vector<LoadRequest>{{{1, 2, 3}, {}}}, {3}, 1);
  numbers.await_readers(3);  // hangs if one made all of it
  numbers.open();
  CHECK(loader.next()[0].sizes() == at::IntArrayRef({3, 3}));
}

// What came of each request: its values, or why there are none.
std::vector<std::string> outcomes(const NumberSet& numbers, const std::vector<LoadRequest>& requests,
                                  int64_t workers, int64_t ahead) {
  std::vector<std::string> all;
  Loader loader(numbers, {1, 0}, requests, {workers}, ahead);
  for (size_t k = 0; k < requests.size(); ++k) {
    try {
      const std::vector<at::Tensor> got = loader.next();
      std::string values;
      for (const at::Tensor& tensor : got)
        values.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
      all.push_back(values);
    } catch (const RunError& error) {
      all.push_back(error.what());
    }
  }
  return all;
}

TEST_CASE("samples that cannot be read fail their minibatch by the first of them, whatever the workers") {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    NumberSet numbers;
    for (int64_t i = 0; i < 1000; ++i)
      if (random() % 40 == 0) numbers.broken.insert(i);
    std::vector<LoadRequest> requests(random() % 20);
    for (LoadRequest& request : requests) {
      request.key = {random(), static_cast<int64_t>(random() % 10)};
      request.indices.resize(random() % 70);
      for (int64_t& index : request.indices) index = static_cast<int64_t>(random() % 1000);
    }
    const std::vector<std::string> expected = outcomes(numbers, requests, 0, 0);
    for (const LoadRequest& request : requests) {
      const auto first = std::find_if(request.indices.begin(), request.indices.end(),
                                      [&](int64_t i) { return numbers.broken.count(i) > 0; });
      if (first != request.indices.end())
        REQUIRE(expected[static_cast<size_t>(&request - requests.data())] ==
                "sample " + std::to_string(*first) + " is broken");
    }
    for (int i = 0; i < 3; ++i) {
      const auto workers = static_cast<int64_t>(1 + random() % 6),
                 ahead = static_cast<int64_t>(1 + random() % 6);
      REQUIRE(outcomes(numbers, requests, workers, ahead) == expected);
    }
  }
}

TEST_CASE("a source that waits holds up neither the minibatches before it nor their workers") {
  const NumberSet numbers;
  std::promise<void> go_on;
  std::shared_future<void> may_go_on = go_on.get_future().share();
  int64_t asked = 0;
  Loader loader(
      numbers, {1},
      [&, may_go_on]() -> std::optional<LoadRequest> {
        if (asked == 4) return std::nullopt;
        if (asked == 2) may_go_on.wait();
        return LoadRequest{{asked++}, {}};
      },
      {2}, 4);
  CHECK(loader.next()[0].const_data_ptr<int64_t>()[0] == 0);
  CHECK(loader.next()[0].const_data_ptr<int64_t>()[0] == 10);
  go_on.set_value();
  CHECK(loader.next()[0].const_data_ptr<int64_t>()[0] == 20);
  CHECK(loader.next()[0].const_data_ptr<int64_t>()[0] == 30);
  CHECK_THROWS_AS(loader.next(), CheckError);
}

TEST_CASE("workers run on the cores that they are given") {
  class Placed : public NumberSet {
   public:
    void read(int64_t index, size_t field, SampleKey key, void* into) const override {
      cpu_set_t set;
      CPU_ZERO(&set);
      sched_getaffinity(0, sizeof set, &set);
      cores = CPU_COUNT(&set);
      NumberSet::read(index, field, key, into);
    }
    mutable std::atomic<int> cores = 0;
  };
  cpu_set_t all;
  CPU_ZERO(&all);
  sched_getaffinity(0, sizeof all, &all);
  int last = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all)) last = core;
  for (const bool given : {true, false}) {
    const Placed placed;
    Loader loader(placed, {0}, std::vector<LoadRequest>{{{1}, {}}},
                  {2, given ? std::vector<int>{last} : std::vector<int>{}}, 2);
    loader.next();
    CHECK(placed.cores == (given ? 1 : CPU_COUNT(&all)));
  }
}

TEST_CASE("as many workers as cores are left, as many as wanted, and never none") {
  const int64_t cores = data_workers(0, 0).count;  // of this machine, 16 at most
  CHECK(data_workers(5, 100, 100).count == 5);
  CHECK(data_workers(0, 10'000).count == 1);
  CHECK(data_workers(0, 0, 10'000).count == 1);
  CHECK(cores >= 1);
  CHECK(cores <= kMostDataWorkers);
  std::thread([] {  // its affinity goes with it
    cpu_set_t all, one;
    CPU_ZERO(&all);
    CPU_ZERO(&one);
    sched_getaffinity(0, sizeof all, &all);
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &all) || CPU_COUNT(&one) == 2) continue;
      CPU_SET(core, &one);
      sched_setaffinity(0, sizeof one, &one);
      CHECK(data_workers(0, 0).count == CPU_COUNT(&one));
      CHECK(data_workers(0, 1).count == 1);
      CHECK(data_workers(0, 0, 2).count == 1);
    }
  })
      .join();
}

TEST_CASE("as many minibatches are made in advance as keep workers busy, and no more") {
  for (int64_t workers = 1; workers <= 64; ++workers) {
    for (int64_t batch = 1; batch <= 100; ++batch) {
      const int64_t ahead = minibatches_ahead(workers, batch);
      CHECK(ahead >= 4);
      CHECK((ahead - 2) * batch >= 2 * workers);
      CHECK((ahead == 4 || (ahead - 3) * batch < 2 * workers));
    }
  }
}

}  // namespace
}  // namespace pipewright
