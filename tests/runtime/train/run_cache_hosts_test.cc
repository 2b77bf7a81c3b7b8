// Which ranks make a host's cache, and who opens it.
#include <catch2/catch.hpp>
#include <thread>

#include "graph/error.h"
#include "models/load.h"
#include "runtime/train/run_cache.h"
#include "tests/runtime/train/small_job.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

struct CachingJob {
  explicit CachingJob(const std::string& cache) {
    job.run = small_run(folder);
    job.run.cache = cache;
    job.model = load_model(job.run.model, job.run.batch_size);
    data.emplace(job);
  }
  std::unique_ptr<RunCache> cache(Exchange* exchange) {
    return RunCache::make(job.run, {*data, exchange, [](const std::string&) {}});
  }

  const TemporaryFolder folder;
  Job job;
  std::optional<TrainingData> data;
};

}  // namespace

TEST_CASE("run cache: the first rank of each host makes its cache, whoever comes first") {
  CachingJob job("memory:memory=1MiB");
  const Store server = Store::serve(0);
  const std::vector<std::string> hosts = {"a", "b", "a", "b", "a"};
  std::vector<std::unique_ptr<RunCache>> caches(hosts.size());
  std::vector<std::thread> ranks;
  for (size_t r = hosts.size(); r-- > 0;) {
    ranks.emplace_back([&, r] {
      Store store = Store::join("127.0.0.1", server.port(), 20s);
      Exchange exchange(store, {static_cast<int64_t>(r), static_cast<int64_t>(hosts.size()), 20s});
      exchange.say(Topic::kHost, hosts[r]);
      caches[r] = job.cache(&exchange);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& cache : caches) CHECK(cache != nullptr);
  Store store = Store::join("127.0.0.1", server.port(), 20s);
  Exchange said(store, {0, 5, 50ms});
  CHECK(said.said_by(0, Topic::kCache) != said.said_by(1, Topic::kCache));
  for (const int64_t other : {2, 3, 4}) CHECK_THROWS_AS(said.said_by(other, Topic::kCache), PeerError);
}

TEST_CASE("run cache: where the first rank of a host has none, no rank of the host has one") {
  CachingJob job("memory:memory=1MiB");
  const Store server = Store::serve(0);
  Store store = Store::join("127.0.0.1", server.port(), 20s);
  Exchange first(store, {0, 2, 20s}), second(store, {1, 2, 20s});
  first.say(Topic::kHost, "a");
  second.say(Topic::kHost, "a");
  first.say(Topic::kCache, "");
  CHECK(job.cache(&second) == nullptr);
}

TEST_CASE("run cache: nothing can be kept once that was found, here or elsewhere") {
  CachingJob job("memory:memory=1MiB");
  const auto cache = job.cache(nullptr);
  REQUIRE(cache);
  CHECK(cache->can_keep());
  cache->hear_impure();
  CHECK_FALSE(cache->can_keep());
  CHECK(CachingJob("none").cache(nullptr) == nullptr);
}
