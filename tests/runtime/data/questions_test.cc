#include "runtime/data/answers.h"
#include "tests/runtime/data/texts.h"

namespace pipewright {
namespace {

using testing::question;
using testing::read_field;
using testing::TemporaryFolder;
using Tokens = std::vector<int64_t>;

std::string questions_spec(const TemporaryFolder& folder, const std::string& options) {
  return "questions:" + options + ",vocabulary=" + testing::write_vocabulary(folder.path()) +
         ",file=" + (folder.path() / "squad.json").string();
}

// Eight pieces: the film , in 1 ##9 ##9 ##8
constexpr const char* kContext = "The film, in 1998";

TEST_CASE("questions: a question and its text between marks, and where the answer stands") {
  const TemporaryFolder folder;
  testing::write_questions(
      folder.path(), kContext,
      question("q", "Who wrote it?", "film", 4) + "," + question("r", "it?", "1998", 13));
  const auto set = open_dataset(questions_spec(folder, "tokens=16,stride=4,question=5"), "train");
  REQUIRE(set->size() == 2);
  CHECK(set->classes() == 16);
  // [CLS] who wrote it ? [SEP] the film , in 1 ##9 ##9 ##8 [SEP]
  CHECK(read_field<int64_t>(*set, 0, 0) == Tokens{2, 12, 13, 14, 22, 3, 8, 7, 24, 15, 16, 17, 17, 18, 3, 0});
  CHECK(read_field<int64_t>(*set, 0, 1) == Tokens{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0});
  CHECK(read_field<int64_t>(*set, 0, 2) == Tokens{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0});
  CHECK(read_field<int64_t>(*set, 0, 3) == Tokens{7});
  CHECK(read_field<int64_t>(*set, 0, 4) == Tokens{7});
  CHECK(read_field<int64_t>(*set, 1, 3) == Tokens{8});
  CHECK(read_field<int64_t>(*set, 1, 4) == Tokens{11});
  CHECK(set->remarks().empty());
}

TEST_CASE(
    "questions: of a long text windows are read, and the first token is asked for where the answer is not "
    "whole") {
  const TemporaryFolder folder;
  testing::write_questions(folder.path(), kContext, question("q", "who?", "in 1998", 10));
  // [CLS] who ? [SEP] 3 pieces [SEP]; the answer is pieces 3 to 7, which no window of three holds.
  const auto narrow = open_dataset(questions_spec(folder, "tokens=8,stride=2,question=2"), "train");
  REQUIRE(narrow->size() == 4);  // 0..2, 2..4, 4..6, 6..7
  CHECK(read_field<int64_t>(*narrow, 1, 0) == Tokens{2, 12, 22, 3, 24, 15, 16, 3});
  CHECK(read_field<int64_t>(*narrow, 3, 0) == Tokens{2, 12, 22, 3, 17, 18, 3, 0});
  for (int64_t i = 0; i < narrow->size(); ++i) CHECK(read_field<int64_t>(*narrow, i, 3) == Tokens{0});
  const auto wide = open_dataset(questions_spec(folder, "tokens=10,stride=3,question=2"), "train");
  REQUIRE(wide->size() == 2);  // 0..4, 3..7
  CHECK(read_field<int64_t>(*wide, 0, 3) == Tokens{0});
  CHECK(read_field<int64_t>(*wide, 0, 4) == Tokens{0});
  CHECK(read_field<int64_t>(*wide, 1, 3) == Tokens{4});
  CHECK(read_field<int64_t>(*wide, 1, 4) == Tokens{8});
}

TEST_CASE("questions: windows hold every piece of the text, whatever the stride") {
  const TemporaryFolder folder;
  for (int size = 1; size < 30; ++size) {
    std::string context = "a";
    for (int i = 1; i < size; ++i) context += " a";
    testing::write_questions(folder.path(), context, question("q", "who?", "a", 2 * (size - 1)));
    for (int stride = 1; stride <= 5; ++stride) {
      const auto set = open_dataset(
          questions_spec(folder, "tokens=10,question=2,stride=" + std::to_string(stride)), "train");
      // The last piece is the answer: in the last window it is found, at the end of the text.
      const int64_t last = set->size() - 1;
      const Tokens mask = read_field<int64_t>(*set, last, 1);
      const int64_t length = std::count(mask.begin(), mask.end(), 1);
      CHECK(read_field<int64_t>(*set, last, 3) == Tokens{length - 2});
      CHECK(set->size() == 1 + (std::max(0, size - 5) + stride - 1) / stride);
    }
  }
}

TEST_CASE("questions: answers are counted in characters, not bytes") {
  const TemporaryFolder folder;
  testing::write_questions(folder.path(), "Émilie – the film", question("q", "who?", "film", 13));
  const auto set = open_dataset(questions_spec(folder, "tokens=16,stride=4,question=5"), "train");
  CHECK(read_field<int64_t>(*set, 0, 3) == Tokens{7});  // [CLS] who ? [SEP] [UNK] [UNK] the film
}

TEST_CASE("questions: an answer that does not stand where it should is not trained, but asked") {
  const TemporaryFolder folder;
  testing::write_questions(folder.path(), kContext,
                           question("lost", "who?", "film", 5) + "," + question("found", "who?", "film", 4));
  const std::string spec = questions_spec(folder, "tokens=16,stride=4,question=5");
  const auto train = open_dataset(spec, "train"), evaluation = open_dataset(spec, "evaluation");
  CHECK(train->size() == 1);
  CHECK(evaluation->size() == 2);
  REQUIRE(train->remarks().size() == 1);
  CHECK_THAT(train->remarks()[0], Catch::Contains("1 of 2 questions") && Catch::Contains("that of \"lost\""));
  testing::write_questions(folder.path(), kContext, question("lost", "who?", "film", 5000));
  CHECK_THAT(testing::message_of<InputError>([&] { open_dataset(spec, "train"); }),
             Catch::Contains("holds 0 windows") && Catch::Contains("that of \"lost\""));
}

TEST_CASE("questions: the best span that an answer may be, in the words of the text") {
  const TemporaryFolder folder;
  testing::write_questions(folder.path(), kContext, question("q", "who?", "The film", 0));
  const auto set =
      open_dataset(questions_spec(folder, "tokens=16,stride=4,question=5,answer=2"), "evaluation");
  const auto* questions = dynamic_cast<const QuestionDataset*>(set.get());
  REQUIRE(questions != nullptr);
  // [CLS] who ? [SEP] the film , in 1 ##9 ##9 ##8 [SEP]: the text is at 4 to 11.
  std::vector<float> begins(16, 0), ends(16, 0);
  begins[0] = ends[0] = begins[13] = ends[13] = 100;  // marks and padding are no answer
  begins[4] = 3;
  ends[5] = 2;
  ends[7] = 9;  // three pieces away: too long
  const WindowAnswer answer = questions->answer_of(0, begins.data(), ends.data());
  CHECK(answer.question == 0);
  // From "in" to "in" is 9 and better than "the film" with 5.
  CHECK(answer.score == 9);
  CHECK(answer.scores.exact == 0);
  ends[7] = 4;
  CHECK(questions->answer_of(0, begins.data(), ends.data()).score == 5);
  CHECK(questions->answer_of(0, begins.data(), ends.data()).scores.exact == 1);
  begins[5] = 4;
  CHECK(questions->answer_of(0, begins.data(), ends.data()).score == 6);         // "film"
  CHECK(questions->answer_of(0, begins.data(), ends.data()).scores.exact == 1);  // articles do not count
}

TEST_CASE("questions: mistakes") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& qas, const std::string& context = kContext) {
    testing::write_questions(folder.path(), context, qas);
    return testing::message_of<InputError>(
        [&] { open_dataset(questions_spec(folder, "tokens=16,stride=4,question=5"), "train"); });
  };
  const auto place = Catch::Contains("squad.json: data[0].paragraphs[0]");
  CHECK_THAT(refused(""), Catch::Contains("squad.json: holds no question"));
  CHECK_THAT(refused(R"({"id": "q", "question": "who?", "answers": []})"),
             place && Catch::Contains("question \"q\" has no answer") && Catch::Contains("SQuAD 1.1"));
  CHECK_THAT(refused(R"({"id": "q", "question": "who?"})"), place && Catch::Contains("answers"));
  CHECK_THAT(refused(R"({"id": "q", "question": "who?", "answers": [{"text": "film"}]})"),
             place && Catch::Contains("answer_start"));
  CHECK_THAT(refused(question("q", " ", "film", 4)), place && Catch::Contains("question: is empty"));
  CHECK_THAT(refused(question("q", "who?", "film", 4), " "), place && Catch::Contains("context: is empty"));
  CHECK_THAT(refused(question("q", "who?", "film", -4)), place && Catch::Contains("answer_start"));
  CHECK_THAT(refused(question("q", "who\xff?", "film", 4)), Catch::Contains("squad.json"));
  testing::write_bytes(folder.path() / "squad.json", "{\"data\": 3}");
  CHECK_THAT(
      testing::message_of<InputError>([&] { open_dataset(questions_spec(folder, "tokens=80"), "train"); }),
      Catch::Contains("stride"));
  const auto message = [&](const std::string& options) {
    return testing::message_of<InputError>([&] { open_dataset("questions" + options, "train"); });
  };
  CHECK_THAT(message(""), Catch::Contains("file: it is missing"));
  CHECK_THAT(message(":file=x"), Catch::Contains("vocabulary: it is missing"));
  CHECK_THAT(message(":file=x,vocabulary=v,tokens=64"),
             Catch::Contains("expected more than the question's 64"));
  CHECK_THAT(message(":file=x,vocabulary=v,tokens=100"),
             Catch::Contains("stride: got 128, expected at most 33"));
}

TEST_CASE("questions: the evaluation has a file of its own") {
  const TemporaryFolder folder;
  testing::write_questions(folder.path(), kContext, question("q", "who?", "film", 4));
  const std::string own = testing::write_questions(
      folder.path(), kContext, question("a", "who?", "film", 4) + "," + question("b", "who?", "film", 4),
      "dev.json");
  const std::string spec = questions_spec(folder, "tokens=16,stride=4,question=5,evaluation=" + own);
  CHECK(open_dataset(spec, "train")->size() == 1);
  CHECK(open_dataset(spec, "evaluation")->size() == 2);
}

}  // namespace
}  // namespace pipewright
