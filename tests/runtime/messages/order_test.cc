// What rank 0 orders arrives as it was said, and what ranks agree by travels like any message.
#include "runtime/messages/order.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "graph/error.h"
#include "runtime/messages/rank_message.h"

using namespace pipewright;

namespace {

template <typename T>
T ordered(const T& order) {
  const std::string text = text_of(Order(order));
  CAPTURE(text);
  CHECK(text.find('\n') == std::string::npos);
  const Order back = order_of(text);
  REQUIRE(std::holds_alternative<T>(back));
  CHECK(text_of(back) == text);
  return std::get<T>(back);
}

template <typename T>
T told(const T& message) {
  const RankMessage back = rank_message_of(text_of(message_of(AgreementMessage(message))));
  const auto agreement = agreement_in(back);
  REQUIRE(agreement);
  REQUIRE(std::holds_alternative<T>(*agreement));
  return std::get<T>(*agreement);
}

}  // namespace

TEST_CASE("orders: each is read back the same") {
  CHECK(ordered(BeginNoMore{3, 15}).signal == 15);
  const StopBefore stop = ordered(StopBefore{3, 48, "{\"plan\": \"two\\nlines\"}\n"});
  CHECK(stop.round == 3);
  CHECK(stop.minibatch == 48);
  CHECK(stop.change == "{\"plan\": \"two\\nlines\"}\n");
  CHECK(ordered(BeginAgain{4}).round == 4);
  CHECK(ordered(DrainDecided{64, ""}).minibatch == 64);
  const GenerationEnded ended = ordered(GenerationEnded{2, true, 80});
  CHECK(ended.generation == 2);
  CHECK(ended.stopped);
  CHECK(ended.next_minibatch == 80);
}

TEST_CASE("orders: what is none is an error") {
  for (const char* text : {"", "7", "[]", R"(["begin no more",[1]])", R"(["minibatch",{}])"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(order_of(text), InputError);
  }
}

TEST_CASE("messages: what ranks agree by is told from the rest") {
  CHECK(told(SignalHeard{2}).signal == 2);
  CHECK(told(BegunUpTo{1, 17}).minibatch == 17);
  CHECK(told(StopKnown{5}).round == 5);
  CHECK(told(ChangeMade{6}).round == 6);
  const GradientNorms norms = told(GradientNorms{64, 2, {1.0 / 3, std::nan("")}});
  CHECK(norms.stage == 2);
  CHECK(norms.norms.at(0) == 1.0 / 3);
  CHECK(std::isnan(norms.norms.at(1)));
  CHECK_FALSE(agreement_in(MinibatchLoss{}));
  CHECK_FALSE(agreement_in(WeightsSaved{}));
}
