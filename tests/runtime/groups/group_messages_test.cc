// What ranks and the group server say arrives as it was said; what is no message is refused, whoever wrote
// it.
#include "runtime/groups/group_messages.h"

#include <catch2/catch.hpp>
#include <random>

#include "graph/error.h"

using namespace pipewright;
using namespace std::chrono_literals;

namespace {

template <typename T>
T asked(const T& request) {
  const std::string text = text_of(GroupRequest(request));
  CAPTURE(text);
  CHECK(text.find('\n') == std::string::npos);
  const GroupRequest back = group_request_of(text + "\n");
  REQUIRE(std::holds_alternative<T>(back));
  CHECK(text_of(back) == text);
  return std::get<T>(back);
}

template <typename T>
T answered(const T& reply) {
  const std::string text = text_of(GroupReply(reply));
  CAPTURE(text);
  CHECK(text.find('\n') == std::string::npos);
  const GroupReply back = group_reply_of(text + "\n");
  REQUIRE(std::holds_alternative<T>(back));
  CHECK(text_of(back) == text);
  return std::get<T>(back);
}

}  // namespace

TEST_CASE("group messages: every request is read back the same") {
  const GroupHello hello = asked(GroupHello{"a \"secret\"\n", 3, 4, 8});
  CHECK(hello.secret == "a \"secret\"\n");
  CHECK(hello.generation == 3);
  CHECK(hello.stages == 4);
  CHECK(hello.pipelines == 8);
  const UpdateExpected expected = asked(UpdateExpected{2, 5, 1234567ns});
  CHECK(expected.stage == 2);
  CHECK(expected.pipeline == 5);
  CHECK(expected.ready_in == 1234567ns);
  const UpdateMade made = asked(UpdateMade{1, 6, {7ns, 8s}});
  CHECK(made.stage == 1);
  CHECK(made.pipeline == 6);
  CHECK(made.patience.wait == 7ns);
  CHECK(made.patience.update == 8s);
  const StageLeft left = asked(StageLeft{1, 7});
  CHECK(left.stage == 1);
  CHECK(left.pipeline == 7);
  const MinibatchesWanted wanted = asked(MinibatchesWanted{{100, 60}, 4, 3, 11});
  CHECK(wanted.span == Span{100, 60});
  CHECK(wanted.interval == 4);
  CHECK(wanted.pipeline == 3);
  CHECK(wanted.part == 11);
  const PipelinesMet met = asked(PipelinesMet{2, 96, {0, 3, 5, 6, 7, 8}});
  CHECK(met.stage == 2);
  CHECK(met.span == 96);
  CHECK(met.meeting == WeightMeeting{0, 3, 5, 6, 7, 8});
}

TEST_CASE("group messages: every reply is read back the same") {
  const GroupFormed formed = answered(GroupFormed{2, {0, 3, 5}});
  CHECK(formed.stage == 2);
  CHECK(formed.pipelines == std::vector<int64_t>{0, 3, 5});
  CHECK(answered(StageLeftByAll{4}).stage == 4);
  CHECK(answered(MinibatchesGiven{{12, 4}}).minibatches == Span{12, 4});
  CHECK(answered(MinibatchesGiven{{16, 0}}).minibatches == Span{16, 0});
}

TEST_CASE("group messages: what is no request is an error") {
  for (const char* text :
       {"", "7", "{}", "[]", R"(["hello"])", R"(["hello",["s",0,1]])", R"(["hello",[7,0,1,2]])",
        R"({"secret":"s","generation":0,"stages":1,"pipelines":2})", R"(["group formed",[0,[1]]])",
        R"(["update expected",[0,1,-1]])", R"(["update expected",[0,1,9000000000000000000]])",
        R"(["update made",[0,1,5]])", R"(["update made",[0,"1",5,6]])", R"(["stage left",0])",
        R"(["minibatches wanted",[[0,-1],1,0,0]])", R"(["minibatches wanted",[[-1,4],1,0,0]])",
        R"(["minibatches wanted",[[0,4,4],1,0,0]])",
        R"(["minibatches wanted",[[0,9000000000000000000],1,0,0]])", R"(["pipelines met",[0,0,{}]])"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(group_request_of(text), InputError);
  }
}

TEST_CASE("group messages: what is no reply is an error") {
  for (const char* text : {"", "null", "[]", R"({"stage":0,"group":[0]})", R"(["group formed",[0]])",
                           R"(["group formed",[0,["a"]]])", R"(["stage left by all",[]])",
                           R"(["minibatches given",[0]])", R"(["stage left",[0,1]])"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(group_reply_of(text), InputError);
  }
}

TEST_CASE("group messages: a meeting of pipelines that do not meet is refused") {
  const WeightMeeting sound{0, 1, 5, 6, 7, 8};
  asked(PipelinesMet{0, 0, sound});
  const std::vector<WeightMeeting> unsound = {
      {1, 0, 5, 6, 7, 8},  // who answers has asked
      {0, 2, 5, 6, 7, 8},  // both ask
      {0, 1, 5, 5, 7, 8},  // added before it was published
      {0, 1, 5, 6, -1, 8},
      {0, 1, -1, 6, 7, 8},
      {0, 1, 5, 6, 7, -1},
      {-2, 1, 5, 6, 7, 8},
      {0, (1 << 20) + 1, 5, 6, 7, 8},
  };
  for (const WeightMeeting& meeting : unsound) {
    const std::string text = text_of(GroupRequest(PipelinesMet{0, 0, meeting}));
    CAPTURE(text);
    CHECK_THROWS_AS(group_request_of(text), InputError);
  }
}

TEST_CASE("group messages: a damaged request is one, or an error") {
  const std::vector<std::string> sound = {text_of(GroupRequest(GroupHello{"secret", 3, 4, 8})),
                                          text_of(GroupRequest(UpdateMade{1, 6, {7ns, 8s}})),
                                          text_of(GroupRequest(MinibatchesWanted{{100, 60}, 4, 3, 11})),
                                          text_of(GroupRequest(PipelinesMet{2, 96, {0, 3, 5, 6, 7, 8}}))};
  std::mt19937_64 random(1);
  int64_t refused = 0, read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = sound[random() % sound.size()];
    const size_t at = random() % text.size();
    switch (random() % 3) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 4);
        break;
      default:
        text.insert(at, 1, text[random() % text.size()]);
    }
    try {
      group_request_of(text);
      ++read;
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(refused > 1000);
  CHECK(read > 100);
}
