// The scheduler of groups over real sockets: ranks as threads, strangers, ranks that go.
#include "runtime/groups/group_server.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "graph/error.h"
#include "runtime/groups/group_client.h"
#include "runtime/groups/group_log.h"
#include "runtime/groups/group_messages.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

struct Served {
  explicit Served(const std::string& sync) {
    GroupServer::Settings settings;
    settings.secret = "a secret";
    settings.rules = partial_reduce_rules(sync);
    settings.decided = [this](int64_t generation, const GroupDecision& decision) {
      const std::lock_guard lock(mutex);
      decisions.emplace_back(generation, decision);
    };
    server = std::make_unique<GroupServer>(std::move(settings));
  }
  std::unique_ptr<Groups> rank(int64_t stages, int64_t pipelines, int64_t generation = 0,
                               std::function<void()> check = {}) const {
    GroupClientSettings settings;
    settings.host = "127.0.0.1";
    settings.server = {server->port(), "a secret"};
    settings.generation = generation;
    settings.stages = stages;
    settings.pipelines = pipelines;
    settings.timeout = 10s;
    settings.check = std::move(check);
    return connect_groups(std::move(settings));
  }
  std::mutex mutex;
  std::vector<std::pair<int64_t, GroupDecision>> decisions;
  std::unique_ptr<GroupServer> server;
};

}  // namespace

TEST_CASE("ranks ask, wait and hear of one group, who leaves is not waited for") {
  const Served served("partial-reduce:window=1");
  constexpr int64_t kPipelines = 4, kStages = 2, kUpdates = 50;
  std::vector<std::vector<std::vector<int64_t>>> heard(kPipelines * kStages);
  std::vector<std::thread> ranks;
  for (int64_t r = 0; r < kPipelines * kStages; ++r) {
    ranks.emplace_back([&, r] {
      const auto groups = served.rank(kStages, kPipelines);
      const int64_t stage = r / kPipelines, pipeline = r % kPipelines;
      for (int64_t span = 0; span < 2; ++span) {
        for (int64_t k = 0; k < kUpdates - (pipeline == 3 ? 1 : 0); ++k) {
          groups->announce(stage, pipeline, 1ms);
          groups->ask(stage, pipeline, {1ms});
          heard[static_cast<size_t>(r)].push_back(groups->await(stage));
        }
        groups->leave(stage, pipeline);
        groups->await_left(stage);
        // As in training: nobody begins a span before all have ended the last one.
        static std::array<std::atomic<int64_t>, 2> there{};
        for (++there[static_cast<size_t>(span)]; there[static_cast<size_t>(span)] < kPipelines * kStages;)
          std::this_thread::yield();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int64_t r = 0; r < kPipelines * kStages; ++r) {
    const auto& groups = heard[static_cast<size_t>(r)];
    for (size_t k = 0; k < groups.size(); ++k) {
      const bool last = r % kPipelines != 3 && k % kUpdates == kUpdates - 1;
      CHECK(groups[k] == (last ? std::vector<int64_t>{0, 1, 2} : std::vector<int64_t>{0, 1, 2, 3}));
    }
  }
  const GroupStatistics statistics = served.server->statistics();
  CHECK(statistics.groups == std::map<int64_t, int64_t>{{3, 2 * kStages}, {4, 2 * kStages * (kUpdates - 1)}});
  CHECK(statistics.longest_window_updates == kPipelines);
}

TEST_CASE("a rank that waits looks at what ends the job, and hears of a server that goes") {
  auto served = std::make_unique<Served>("partial-reduce:window=1");
  int64_t checks = 0;
  const auto first = served->rank(1, 2, 0, [&] {
    if (++checks > 2) throw RunError("the job has ended");
  });
  first->ask(0, 0, {1s});
  CHECK_THROWS_WITH(first->await(0), Catch::Contains("the job has ended"));

  const auto second = served->rank(1, 2, 1);
  second->ask(0, 0, {1s});
  std::thread end([&] { served.reset(); });
  CHECK_THROWS_AS(second->await(0), PeerError);
  end.join();
  CHECK_THROWS_AS(second->await_left(0), PeerError);
}

TEST_CASE("strangers, whatever they say, disturb nobody") {
  namespace asio = boost::asio;
  const Served served("partial-reduce");
  const auto rank = served.rank(1, 2);
  std::mt19937_64 random(5);
  std::vector<std::string> words = {"GET / HTTP/1.1\r\n\r\n", "{\"stage\":0,\"pipeline\":0}\n",
                                    "{\"secret\":\"wrong\",\"generation\":0,\"stages\":1,\"pipelines\":2}\n",
                                    "{\"secret\":7}\n", std::string(1 << 20, 'x')};
  for (int i = 0; i < 50; ++i) {
    std::string noise(static_cast<size_t>(random() % 200), ' ');
    for (char& letter : noise) letter = static_cast<char>(random());
    words.push_back(noise + "\n");
  }
  for (const std::string& word : words) {
    asio::io_context context;
    asio::ip::tcp::socket socket(context);
    socket.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(served.server->port())});
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer(word), ignored);
  }
  const auto other = served.rank(1, 2);
  rank->ask(0, 0, {10s});
  other->ask(0, 1, {10s});
  CHECK(rank->await(0) == std::vector<int64_t>{0, 1});
  CHECK(other->await(0) == std::vector<int64_t>{0, 1});
}

TEST_CASE("the log of groups reads back as it was decided, what is none is refused with its line") {
  const TemporaryFolder folder;
  const auto file = folder / "groups.jsonl";
  {
    GroupLog log(file, 27);
    log.write(0, {1, {0, 2}, {0, 2}, false});
    log.write(0, {0, {1}, {1}, false});
    log.write(0, {0, {0, 2}, {2}, /*passed_on=*/true});
    log.write(2, {0, {0, 1, 2}, {0, 1, 2}, false});
  }
  CHECK(read_group_log(file).first_minibatch == 27);
  const auto groups = read_group_log(file).generations;
  REQUIRE(groups.size() == 2);
  CHECK(groups.at(0) == GroupsByStage{{{1}}, {{0, 2}}});
  CHECK(groups.at(2) == GroupsByStage{{{0, 1, 2}}});
  CHECK_THROWS_AS(read_group_log(folder / "none.jsonl"), InputError);
  for (const char* line : {"{\"generation\":0,\"stage\":-1,\"group\":[0]}", "{\"generation\":0}", "[1]", "{",
                           "{\"generation\":0,\"stage\":0,\"group\":[\"a\"]}"}) {
    std::ofstream(file, std::ios::trunc) << "{\"first_minibatch\":0}\n" << line << "\n";
    CHECK_THROWS_WITH(read_group_log(file), Catch::Contains("line 2"));
  }
}
