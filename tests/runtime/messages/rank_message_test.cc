// What ranks tell rank 0 arrives as it was said.
#include "runtime/messages/rank_message.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "graph/error.h"

using namespace pipewright;

namespace {

template <typename T>
T sent(const T& message) {
  const std::string text = text_of(message);
  CAPTURE(text);
  CHECK(text.find('\n') == std::string::npos);
  const RankMessage back = rank_message_of(text);
  REQUIRE(std::holds_alternative<T>(back));
  CHECK(text_of(back) == text);
  return std::get<T>(back);
}

}  // namespace

TEST_CASE("messages: a loss keeps all its digits, its part and what is said of its update") {
  const MinibatchLoss plain = sent(MinibatchLoss{7, 1.0 / 3, 0.1 + 0.2});
  CHECK(plain.minibatch == 7);
  CHECK(plain.loss == 1.0 / 3);
  CHECK(plain.elapsed_seconds == 0.1 + 0.2);
  CHECK_FALSE(plain.update.learning_rate);
  CHECK_FALSE(plain.update.gradient_norm);
  CHECK(plain.part.count == 1);
  const MinibatchLoss part = sent(MinibatchLoss{8, std::nan(""), 1, {0.1, HUGE_VAL}, {1, 3}});
  CHECK(std::isnan(part.loss));
  CHECK(part.update.learning_rate == 0.1);
  CHECK(std::isnan(part.update.gradient_norm.value()));
  CHECK(part.part.number == 1);
  CHECK(part.part.count == 3);
}

TEST_CASE("messages: evaluations, drains, speeds, traces and what was saved") {
  CHECK(sent(EvaluationBegins{3, 12}).minibatches == 12);
  EvaluationPart part{2, 5, {4, 1.5, 3, 4, 10, -1, {{0.25, 4, {4, 2}}}}};
  part.evaluated.surprise = 2.5;
  part.evaluated.answers = {{1, std::nan(""), 1, 0.5}};
  const EvaluationPart read = sent(part);
  CHECK(read.epoch == 2);
  CHECK(read.minibatches == 5);
  CHECK(read.evaluated.minibatch == 4);
  CHECK(read.evaluated.terms.at(0).counts == std::vector<double>{4, 2});
  CHECK(std::isnan(read.evaluated.answers.at(0).score));
  CHECK(sent(DrainSpread{64, 0.125}).spread == 0.125);
  const SpeedChange speed = sent(SpeedChange{8, 12, 0.25, 0.5, 2});
  CHECK(speed.found == 12);
  CHECK(speed.slowdown == 2);
  CHECK(sent(TraceDocument{"{\n \"a\": \"\\u00e4\"}\n"}).text == "{\n \"a\": \"\\u00e4\"}\n");
  CHECK(sent(TraceDocument{"", 1764430000123456}).zero_unix_microseconds == 1764430000123456);
  const RankStatus status = sent(RankStatus{"forward of minibatch 3", 0.25, 3, 1.5, 4096});
  CHECK(status.operation == "forward of minibatch 3");
  CHECK(status.minibatch == 3);
  CHECK(status.waited_seconds == 1.5);
  CHECK(status.peak_memory_bytes == 4096);
  sent(WeightsSaved{});
  sent(PrefixImpure{});
}

TEST_CASE("messages: summaries of ranks, epochs and plans are those of summary.json") {
  RankSummary rank;
  rank.rank = 3;
  rank.host = "node";
  rank.times = MeasuredTimes{};
  rank.weights_digest = "xxh128:0";
  CHECK(sent(rank).weights_digest == "xxh128:0");
  EpochSummary epoch;
  epoch.epoch = 4;
  epoch.plan = "plan.json";
  epoch.times.forward_seconds = 1.25;
  CHECK(sent(epoch).times.forward_seconds == 1.25);
  GenerationSummary generation;
  generation.number = 2;
  generation.first_minibatch = 80;
  generation.plan = "generation-2.plan.json";
  generation.reason = "slow";
  CHECK(sent(generation).first_minibatch == 80);
}

TEST_CASE("messages: a rank's part of a checkpoint") {
  CheckpointStage stage;
  stage.state = {"stage-1.safetensors", 64, "xxh128:1"};
  stage.updates = 9;
  stage.versions[8] = {"stage-1-version-8.safetensors", 32, "xxh128:2"};
  stage.replicas[1] = {"stage-1-replica-1.safetensors", 16, "xxh128:3"};
  CHECK(sent(CheckpointPart{12, {}, true, "no \"room\""}).lost == "no \"room\"");
  const CheckpointPart part = sent(CheckpointPart{12, {{1, stage}, {4, {}}}});
  CHECK(part.next_minibatch == 12);
  REQUIRE(part.stages.size() == 2);
  CHECK(part.stages.at(1).versions.at(8).bytes == 32);
  CHECK(part.stages.at(1).replicas.at(1).digest == "xxh128:3");
}

TEST_CASE("messages: when messages were sent, to the microsecond") {
  MessageLog log{3, "host \"a\"", {}};
  log.ends.push_back(message_end({ActionKind::kReceiveGradient, 17}, 2));
  log.ends.back().began_seconds = 1763900000.125;
  log.ends.back().ended_seconds = 1763900000.250;
  log.ends.push_back(message_end({ActionKind::kSendActivation, 18, 5}, 2));
  const MessageLog back = sent(log);
  CHECK(back.generation == 3);
  CHECK(back.clock == log.clock);
  REQUIRE(back.ends.size() == 2);
  CHECK(back.ends[0].is_gradient);
  CHECK_FALSE(back.ends[0].is_sender);
  CHECK(back.ends[0].sender_stage == 3);
  CHECK(back.ends[0].minibatch == 17);
  CHECK(back.ends[0].began_seconds == 1763900000.125);
  CHECK(back.ends[0].ended_seconds == 1763900000.250);
  CHECK(back.ends[1].is_sender);
  CHECK(back.ends[1].sender_stage == 5);
}

TEST_CASE("messages: a sample of a core, of which some is not known, or nothing") {
  const CoreSample sample = sent(CoreSample{{0.5, std::nan(""), 3}});
  REQUIRE(sample.features.size() == 3);
  CHECK(std::isnan(sample.features[1]));
  CHECK(sample.features[2] == 3);
  CHECK(sent(CoreSample{}).features.empty());
}

TEST_CASE("messages: what a probe measures") {
  CHECK(sent(ProbedLink{3, 5, 1.5e-6, 2e9, 0.01, 0.02}).bandwidth_spread == 0.02);
  const ProbedPair pair{
      1, 2, 16 << 20, {{8, 1e-6, 0.1}, {64, 2e-6, 0}}, 512, {4 << 20, 1e-3, 0.2}, {{4096, -1e-6, 1e-7}}};
  const ProbedPair read = sent(pair);
  CHECK((read.messages == pair.messages));
  CHECK((read.both_ways == pair.both_ways));
  CHECK(read.left_out_bytes == 512);
  CHECK(read.core_times.at(0).seconds == -1e-6);
  CHECK(sent(CrowdSample{1, 2, true, 3, 1e9, 0.25, 0.5}).core_seconds == 0.25);
  CHECK(sent(ProbedExchange{{0, 1, 2}, 1 << 20, 1e-3, 0.05}).ranks == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("messages: what is none is an error, not a message") {
  for (const char* text :
       {"", "{}", "[]", "17", R"(["rank"])", R"(["unheard of",{}])", R"([3,{}])",
        R"(["minibatch",{"minibatch":"a"}])", R"(["checkpoint",[1]])", R"(["messages",[0,"a",[[1]]]])"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(rank_message_of(text), InputError);
  }
}
