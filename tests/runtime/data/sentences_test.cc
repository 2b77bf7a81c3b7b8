#include "tests/runtime/data/texts.h"

namespace pipewright {
namespace {

using testing::read_field;
using testing::TemporaryFolder;
using Ids = std::vector<int64_t>;

std::string refused(const TemporaryFolder& folder, const std::string& text, const std::string& options = "") {
  testing::write_bytes(folder.path() / "bad.tsv", text);
  const std::string spec = "sentences:" + options + "vocabulary=" + testing::write_vocabulary(folder.path()) +
                           ",file=" + (folder.path() / "bad.tsv").string();
  return testing::message_of<InputError>([&] { open_dataset(spec, "train"); });
}

TEST_CASE("sentences: tokens between marks, padding behind, the class") {
  const TemporaryFolder folder;
  const std::string spec = "sentences:tokens=8," + testing::write_classified(folder.path());
  const auto train = open_dataset(spec, "train"), evaluation = open_dataset(spec, "evaluation");
  CHECK(train->size() == 20);
  CHECK(evaluation->size() == 7);
  CHECK(train->classes() == 2);
  // a bad film; the good ##ly film, the film ##s !
  CHECK(read_field<int64_t>(*train, 0, 0) == Ids{2, 9, 6, 7, 3, 0, 0, 0});
  CHECK(read_field<int64_t>(*train, 0, 1) == Ids{1, 1, 1, 1, 1, 0, 0, 0});
  CHECK(read_field<int64_t>(*train, 0, 2) == Ids(8, 0));
  CHECK(read_field<int64_t>(*train, 0, 3) == Ids{0});
  CHECK(read_field<int64_t>(*train, 1, 0) == Ids{2, 8, 5, 10, 7, 24, 8, 3});
  CHECK(read_field<int64_t>(*train, 1, 1) == Ids(8, 1));
  CHECK(read_field<int64_t>(*train, 1, 3) == Ids{1});
  REQUIRE(train->remarks().size() == 1);
  CHECK_THAT(train->remarks()[0],
             Catch::Contains("of 20 sentences of") && Catch::Contains("more than tokens=8 tokens"));
  CHECK(open_dataset("sentences:tokens=32," + testing::write_classified(folder.path()), "train")
            ->remarks()
            .empty());
}

TEST_CASE("sentences: a file of its own, columns in any order, empty lines and Windows' ends") {
  const TemporaryFolder folder;
  testing::write_bytes(folder.path() / "own.tsv",
                       "index\tlabel\tsentence\r\n\r\n7\t2\ta film\r\n\n8\t0\tbad\n");
  const std::string spec = "sentences:classes=3,tokens=5,file=" + (folder.path() / "own.tsv").string() +
                           ",vocabulary=" + testing::write_vocabulary(folder.path());
  for (const char* split : {"train", "evaluation"}) {
    const auto set = open_dataset(spec, split);
    REQUIRE(set->size() == 2);
    CHECK(read_field<int64_t>(*set, 0, 0) == Ids{2, 9, 7, 3, 0});
    CHECK(read_field<int64_t>(*set, 0, 3) == Ids{2});
    CHECK(read_field<int64_t>(*set, 1, 3) == Ids{0});
  }
}

TEST_CASE("sentences: what is wrong is said with its line") {
  const TemporaryFolder folder;
  CHECK_THAT(refused(folder, ""), Catch::Contains("bad.tsv: is empty"));
  CHECK_THAT(refused(folder, "text\tlabel\na\t1\n"),
             Catch::Contains("bad.tsv:1: the header has no column \"sentence\""));
  CHECK_THAT(refused(folder, "sentence\tlabel\n"), Catch::Contains("bad.tsv: holds no sentence"));
  CHECK_THAT(refused(folder, "sentence\tlabel\na film\t0\nbad\n"),
             Catch::Contains("bad.tsv:3: has 1 columns, the header has 2"));
  CHECK_THAT(refused(folder, "sentence\tlabel\na film\t2\n"),
             Catch::Contains("bad.tsv:2: label: got \"2\", expected 0..1") && Catch::Contains("classes=N"));
  for (const char* label : {"-1", "x", "", "1.0", "99999999999999999999"})
    CHECK_THAT(refused(folder, std::string("sentence\tlabel\na film\t") + label + "\n"),
               Catch::Contains("bad.tsv:2: label: got"));
  CHECK_THAT(refused(folder, "sentence\tlabel\n \t1\n"), Catch::Contains("bad.tsv:2: the sentence is empty"));
  CHECK_THAT(refused(folder, "sentence\tlabel\n\ngood \xc3(\t1\n"),
             Catch::Contains("bad.tsv:3: byte 6 is not UTF-8"));
  const auto message = [](const std::string& options) {
    return testing::message_of<InputError>([&] { open_dataset("sentences" + options, "train"); });
  };
  CHECK_THAT(message(""), Catch::Contains("root: it is missing"));
  CHECK_THAT(message(":root=/x,file=/y"), Catch::Contains("file is given, too"));
  CHECK_THAT(message(":root=/x"), Catch::Contains("vocabulary: it is missing"));
  CHECK_THAT(message(":root=/x,vocabulary=v,tokens=2"), Catch::Contains("tokens"));
}

}  // namespace
}  // namespace pipewright
