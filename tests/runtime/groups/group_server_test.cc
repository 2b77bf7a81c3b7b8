// The scheduler of groups over real sockets: ranks as threads, strangers, ranks that go.
#include "runtime/groups/group_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/groups/group_client.h"
#include "runtime/groups/group_log.h"
#include "runtime/groups/group_messages.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;
namespace asio = boost::asio;

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
    settings.handed_out = [this](int64_t generation, const Span& span, int64_t pipeline, const Span& part) {
      const std::lock_guard lock(mutex);
      parts[{generation, span.first}][pipeline].push_back(part);
    };
    settings.met = [this](int64_t generation, int64_t stage, int64_t span, const WeightMeeting& meeting) {
      const std::lock_guard lock(mutex);
      meetings[{generation, stage, span}].push_back(meeting);
    };
    server = std::make_unique<GroupServer>(std::move(settings));
  }
  GroupClientSettings client(int64_t stages, int64_t pipelines, int64_t generation = 0) const {
    GroupClientSettings settings;
    settings.host = "127.0.0.1";
    settings.server = {server->port(), "a secret"};
    settings.generation = generation;
    settings.stages = stages;
    settings.pipelines = pipelines;
    settings.timeout = 60s;
    settings.check = in_time();
    return settings;
  }
  std::unique_ptr<Groups> rank(int64_t stages, int64_t pipelines, int64_t generation = 0,
                               std::function<void()> check = in_time()) const {
    GroupClientSettings settings = client(stages, pipelines, generation);
    settings.check = std::move(check);
    return connect_groups(std::move(settings));
  }
  std::unique_ptr<MinibatchSource> source(int64_t pipelines, int64_t generation = 0) const {
    return connect_minibatches(client(1, pipelines, generation));
  }
  // Whoever waits for what does not come fails, and does not hang.
  static std::function<void()> in_time() {
    return [end = std::chrono::steady_clock::now() + 60s] {
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("no answer within a minute");
    };
  }

  // Of what follows, while the server's thread may add to it.
  template <typename Kept>
  Kept now(const Kept& kept) const {
    const std::lock_guard lock(mutex);
    return kept;
  }

  mutable std::mutex mutex;
  std::vector<std::pair<int64_t, GroupDecision>> decisions;
  // By generation and first minibatch of the span, by pipeline.
  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, std::vector<Span>>> parts;
  // By generation, stage and first minibatch of the span.
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<WeightMeeting>> meetings;
  std::unique_ptr<GroupServer> server;
};

// Whoever has found the port, and writes what he likes.
class Visitor {
 public:
  explicit Visitor(const Served& served) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(served.server->port())});
  }
  void write(const std::string& words) {
    boost::system::error_code ignored;
    asio::write(socket_, asio::buffer(words), ignored);
  }
  void write(const GroupRequest& request) { write(text_of(request) + "\n"); }
  // Until the server ends the connection: what it has answered. Nothing: it does not end it.
  std::optional<std::string> answers() {
    std::string all;
    bool ended = false;
    asio::async_read(socket_, asio::dynamic_buffer(all),
                     [&](const boost::system::error_code&, size_t) { ended = true; });
    context_.run_for(60s);
    if (ended) return all;
    socket_.close();
    context_.restart();
    context_.run();
    return std::nullopt;
  }

 private:
  asio::io_context context_;
  asio::ip::tcp::socket socket_{context_};
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
  const Served served("partial-reduce");
  const auto rank = served.rank(1, 2);
  std::mt19937_64 random(5);
  std::vector<std::string> words = {"GET / HTTP/1.1\r\n\r\n", text_of(GroupRequest(UpdateMade{})) + "\n",
                                    text_of(GroupRequest(GroupHello{"wrong", 0, 1, 2})) + "\n",
                                    "[\"hello\",[7]]\n", std::string(1 << 20, 'x')};
  for (int i = 0; i < 50; ++i) {
    std::string noise(static_cast<size_t>(random() % 200), ' ');
    for (char& letter : noise) letter = static_cast<char>(random());
    words.push_back(noise + "\n");
  }
  for (const std::string& word : words) Visitor(served).write(word);
  const auto other = served.rank(1, 2);
  rank->ask(0, 0, {60s});
  other->ask(0, 1, {60s});
  CHECK(rank->await(0) == std::vector<int64_t>{0, 1});
  CHECK(other->await(0) == std::vector<int64_t>{0, 1});
}

TEST_CASE("who does not say what a rank says is not listened to") {
  const Served served("partial-reduce");
  const GroupHello hello{"a secret", 0, 2, 2};
  const std::vector<std::vector<GroupRequest>> said = {
      {UpdateMade{0, 0, {}}},                   // not whose rank it is
      {MinibatchesWanted{{0, 4}, 1, 0, 0}},     // likewise
      {GroupHello{"a secre", 0, 2, 2}},         // another secret
      {hello, hello},                           // again
      {GroupHello{"a secret", 0, 0, 2}},        // a plan without stages
      {GroupHello{"a secret", 0, 2, 1 << 30}},  // of more ranks than there may be
      {hello, UpdateExpected{2, 0, 1ms}},       // a stage that there is not
      {hello, UpdateMade{0, 2, {}}},            // a pipeline that there is not
      {hello, StageLeft{-1, 0}},                // likewise
      {hello, PipelinesMet{2, 0, {0, 1, 0, 1, 0, 0}}},
      {hello, PipelinesMet{0, 0, {0, 3, 0, 1, 0, 0}}},
      {hello, MinibatchesWanted{{0, 4}, 0, 0, 0}},  // no interval
      {hello, MinibatchesWanted{{0, 4}, 1, 0, 1}},  // the second part before the first
  };
  for (const auto& requests : said) {
    Visitor visitor(served);
    for (const GroupRequest& request : requests) {
      INFO(text_of(request));
      visitor.write(request);
    }
    CHECK(visitor.answers() == "");
  }
  CHECK(served.now(served.decisions).empty());
  CHECK(served.now(served.meetings).empty());
  CHECK(served.now(served.parts).empty());
}

TEST_CASE("a rank with another secret hears nothing, and the job's own are served on") {
  const Served served("partial-reduce:window=1");
  GroupClientSettings settings = served.client(1, 2);
  settings.server.secret = "another";
  const auto ask_and_wait = [&] {
    const auto other = connect_groups(settings);
    other->ask(0, 0, {1s});
    other->await(0);
  };
  CHECK_THROWS_AS(ask_and_wait(), PeerError);
  CHECK_THROWS_AS(connect_minibatches(settings)->part({0, 4}, 1, 0, 0), PeerError);
  const auto first = served.rank(1, 2), second = served.rank(1, 2);
  first->ask(0, 0, {60s});
  second->ask(0, 1, {60s});
  CHECK(first->await(0) == std::vector<int64_t>{0, 1});
}

TEST_CASE("a rank that dies while it waits takes nobody's group, and what was decided still counts") {
  const Served served("partial-reduce:window=1");
  auto lost = served.rank(1, 3), second = served.rank(1, 3), third = served.rank(1, 3);
  lost->ask(0, 0, {60s});
  lost.reset();
  second->ask(0, 1, {60s});
  third->ask(0, 2, {60s});
  CHECK(second->await(0) == std::vector<int64_t>{0, 1, 2});
  CHECK(third->await(0) == std::vector<int64_t>{0, 1, 2});
  second.reset();
  third.reset();  // nobody of the generation is left
  const auto next = served.rank(1, 1, 1);
  next->ask(0, 0, {0s});
  CHECK(next->await(0) == std::vector<int64_t>{0});
  CHECK(served.server->statistics().groups == std::map<int64_t, int64_t>{{1, 1}, {3, 1}});
}

TEST_CASE("plans are apart: the same stages and pipelines of two generations do not meet") {
  const Served served("partial-reduce:window=1");
  const auto old_first = served.rank(1, 2, 4), new_first = served.rank(1, 2, 5);
  old_first->ask(0, 0, {60s});
  new_first->ask(0, 0, {60s});
  const auto old_second = served.rank(1, 2, 4), new_second = served.rank(1, 2, 5);
  new_second->ask(0, 1, {60s});
  CHECK(new_first->await(0) == std::vector<int64_t>{0, 1});
  old_second->ask(0, 1, {60s});
  CHECK(old_first->await(0) == std::vector<int64_t>{0, 1});
  const auto decisions = served.now(served.decisions);
  REQUIRE(decisions.size() == 2);
  CHECK(decisions[0].first == 5);
  CHECK(decisions[1].first == 4);
}

TEST_CASE("a rank of several stages awaits their answers in any order") {
  const Served served("partial-reduce:window=1");
  const auto first = served.rank(3, 2), second = served.rank(3, 2);
  for (const int64_t stage : {0, 1, 2}) {
    first->ask(stage, 0, {60s});
    second->ask(stage, 1, {60s});
  }
  for (const int64_t stage : {2, 0, 1}) CHECK(first->await(stage) == std::vector<int64_t>{0, 1});
  for (const int64_t stage : {1, 2, 0}) CHECK(second->await(stage) == std::vector<int64_t>{0, 1});
  for (const int64_t stage : {0, 1, 2}) {
    first->leave(stage, 0);
    second->leave(stage, 1);
  }
  for (const int64_t stage : {1, 0, 2}) first->await_left(stage);
  for (const int64_t stage : {2, 1, 0}) second->await_left(stage);
  CHECK(served.server->statistics().groups == std::map<int64_t, int64_t>{{2, 3}});
}

TEST_CASE("meetings are written down in their order, before anybody hears that all have left") {
  const Served served("partial-reduce");
  constexpr int64_t kMeetings = 40;
  const auto active = served.rank(2, 2), passive = served.rank(2, 2);
  for (int64_t k = 0; k < kMeetings; ++k) active->tell(1, 64, {0, 1, k, k + 1, k, 0});
  active->leave(1, 0);
  passive->leave(1, 1);
  passive->await_left(1);
  const auto told = served.now(served.meetings).at({0, 1, 64});
  REQUIRE(told.size() == kMeetings);
  for (int64_t k = 0; k < kMeetings; ++k) CHECK(told[static_cast<size_t>(k)].published == k);
  active->await_left(1);
  CHECK(served.server->statistics().groups == std::map<int64_t, int64_t>{{2, kMeetings}});
}

TEST_CASE("minibatches go to one pipeline each, and all of its stages hear of the same") {
  const Served served("partial-reduce");
  constexpr int64_t kPipelines = 3, kInterval = 4;
  const Span span{10, 91};
  std::vector<std::vector<Span>> heard(2 * kPipelines);
  std::vector<std::thread> ranks;
  for (int64_t r = 0; r < 2 * kPipelines; ++r) {
    ranks.emplace_back([&, r] {
      const auto source = served.source(kPipelines);
      auto& parts = heard[static_cast<size_t>(r)];
      do {
        parts.push_back(source->part(span, kInterval, r % kPipelines, static_cast<int64_t>(parts.size())));
      } while (parts.back().count > 0);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  std::map<int64_t, int64_t> ends;  // by first minibatch
  for (int64_t pipeline = 0; pipeline < kPipelines; ++pipeline) {
    auto parts = heard[static_cast<size_t>(pipeline)];
    CHECK(parts == heard[static_cast<size_t>(pipeline + kPipelines)]);
    parts.pop_back();  // the one that says that nothing is left
    const auto noted = served.now(served.parts).at({0, span.first});
    CHECK(parts == (noted.count(pipeline) ? noted.at(pipeline) : std::vector<Span>()));
    for (const Span& part : parts) {
      CHECK(part.count <= kInterval);
      CHECK((part.end() % kInterval == 0 || part.end() == span.end()));
      CHECK(ends.emplace(part.first, part.end()).second);
    }
  }
  int64_t next = span.first;
  for (const auto& [first, end] : ends) {
    CHECK(first == next);
    next = end;
  }
  CHECK(next == span.end());
}

TEST_CASE("a span whose minibatches were handed out otherwise is refused, the two newest spans are known") {
  const Served served("partial-reduce");
  const auto part = [&](Span span, int64_t interval, int64_t number) {
    return served.source(1)->part(span, interval, 0, number);
  };
  CHECK(part({0, 8}, 4, 0) == Span{0, 4});
  CHECK(part({8, 8}, 4, 0) == Span{8, 4});
  CHECK(part({0, 8}, 4, 1) == Span{4, 4});
  CHECK_THROWS_AS(part({8, 9}, 4, 1), PeerError);  // longer
  CHECK_THROWS_AS(part({8, 8}, 2, 1), PeerError);  // in other parts
  CHECK(part({16, 8}, 4, 0) == Span{16, 4});
  CHECK_THROWS_AS(part({0, 8}, 4, 0), PeerError);  // over
  CHECK(part({8, 8}, 4, 1) == Span{12, 4});
}

TEST_CASE("stop_handing_out: nothing is handed out from the minibatch that follows from the last") {
  const Served served("partial-reduce");
  const auto source = served.source(2);
  const Span span{0, 40};
  CHECK(source->part(span, 4, 0, 0) == Span{0, 4});
  CHECK(source->part(span, 4, 1, 0) == Span{4, 4});
  int64_t asked = -1;
  const auto two_more = [&](int64_t last) {
    asked = last;
    return last + 3;
  };
  SECTION("behind what was handed out") {
    CHECK(served.server->stop_handing_out(0, /*last_started=*/2, two_more) == 10);
    CHECK(asked == 7);
    CHECK(source->part(span, 4, 1, 1) == Span{8, 2});
  }
  SECTION("behind what was started, if that comes later") {
    CHECK(served.server->stop_handing_out(0, /*last_started=*/9, two_more) == 12);
    CHECK(asked == 9);
    CHECK(source->part(span, 4, 1, 1) == Span{8, 4});
  }
  CHECK(source->part(span, 4, 0, 1).count == 0);
  CHECK(source->part(span, 4, 0, 0) == Span{0, 4});
  CHECK(source->part({40, 8}, 4, 0, 0).count == 0);  // nor of the next span
  const auto of_next_plan = served.source(2, 1);
  CHECK(of_next_plan->part(span, 4, 0, 0) == Span{0, 4});
}

TEST_CASE("the server's address reads back as it was told") {
  const GroupServerAddress address = parse_group_server_address(to_text({4711, "a \"secret\""}));
  CHECK(address.port == 4711);
  CHECK(address.secret == "a \"secret\"");
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

TEST_CASE("the log of groups goes on from where all had drained: what was decided behind it is forgotten") {
  const TemporaryFolder folder;
  const auto file = folder / "groups.jsonl";
  const auto decide = [](GroupLog& log, int64_t stage, std::vector<int64_t> pipelines) {
    log.write(0, {stage, pipelines, pipelines, false});
  };
  {
    GroupLog log(file, 0);
    decide(log, 0, {0, 1});
    decide(log, 1, {1});
    log.write_left(0, 0);
    log.write_drained(0, 8);
    decide(log, 0, {1});  // of the second span, before all have left the other stage
    decide(log, 1, {0});
    log.write(0, Span{0, 8}, 1, Span{0, 4});
    log.write_left(0, 1);
    log.write(0, Span{8, 8}, 1, Span{8, 4});
    decide(log, 1, {0, 1});
    log.write_left(0, 0);
    log.write_left(0, 1);
    log.write_drained(0, 16);
    log.write(1, {0, {0}, {0}, false});
  }
  const std::string whole = read_file(file);
  const auto goes_on = [&](int64_t minibatch) {
    std::ofstream(file, std::ios::trunc) << whole << "{\"generation\":1,\"sta";  // killed
    GroupLog log(file, minibatch, /*goes_on=*/true);
    decide(log, 1, {7});
    return read_group_log(file);
  };
  const LoggedGroups first = goes_on(8);
  CHECK(first.first_minibatch == 0);
  CHECK(first.generations == std::map<int64_t, GroupsByStage>{{0, {{{0, 1}}, {{1}, {0}, {7}}}}});
  CHECK(first.parts.at(0).count(8) == 0);
  const LoggedGroups second = goes_on(16);
  CHECK(second.generations.at(0) == GroupsByStage{{{0, 1}, {1}}, {{1}, {0}, {0, 1}, {7}}});
  CHECK(second.generations.count(1) == 0);
  CHECK(second.parts.at(0).count(8) == 1);
  // From where nobody had drained there is only what comes.
  const LoggedGroups none = goes_on(12);
  CHECK(none.first_minibatch == 12);
  CHECK(none.generations == std::map<int64_t, GroupsByStage>{{0, {{}, {{7}}}}});
}

TEST_CASE("the log of minibatches and meetings reads back by span") {
  const TemporaryFolder folder;
  const auto file = folder / "groups.jsonl";
  const WeightMeeting first{0, 1, 2, 3, 4, 5}, second{2, 1, 2, 4, 5, 5};
  {
    GroupLog log(file, 0);
    log.write(1, Span{0, 8}, 1, Span{0, 4});
    log.write(1, Span{0, 8}, 0, Span{4, 4});
    log.write(1, Span{8, 8}, 1, Span{8, 4});
    log.write(1, /*stage=*/1, /*span=*/8, first);
    log.write(1, /*stage=*/1, /*span=*/8, second);
  }
  const LoggedGroups logged = read_group_log(file);
  CHECK(logged.generations.empty());
  const PartsBySpan& parts = logged.parts.at(1);
  CHECK(parts.at(0) == std::map<int64_t, std::vector<Span>>{{0, {{4, 4}}}, {1, {{0, 4}}}});
  CHECK(parts.at(8) == std::map<int64_t, std::vector<Span>>{{1, {{8, 4}}}});
  const auto& stages = logged.meetings.at(1).at(8);
  REQUIRE(stages.size() == 2);
  CHECK(stages[0].empty());
  CHECK(stages[1] == std::vector<WeightMeeting>{first, second});
}
