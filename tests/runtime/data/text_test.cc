// Texts: windows of tokens, masks, pairs of sentences and their vocabulary.
#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "graph/json.h"
#include "runtime/data/bleu.h"
#include "runtime/data/sequences.h"
#include "runtime/data/vocabulary.h"
#include "tests/runtime/data/helpers.h"

namespace pipewright {
namespace {

using testing::message_of;
using testing::read_field;
using testing::TemporaryFolder;
using testing::write_bytes;

std::string text_error(const std::string& spec, const std::string& split = "train") {
  return message_of<InputError>([&] { open_dataset(spec, split); });
}

TEST_CASE("text: samples are windows of the file's bytes, labels the bytes that follow") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a.txt";
  write_bytes(file, "abcdefghijklmnopqrstuvwxyz0123");
  const std::string spec = "text:tokens=4,held=0.3,file=" + file.string();
  const auto train = open_dataset(spec, "train"), evaluation = open_dataset(spec, "evaluation");
  CHECK(train->size() == 5);       // 21 bytes: the last window needs a byte behind it
  CHECK(evaluation->size() == 2);  // 9 bytes
  CHECK(train->classes() == 256);
  CHECK(read_field<int64_t>(*train, 1, 0) == std::vector<int64_t>{'e', 'f', 'g', 'h'});
  CHECK(read_field<int64_t>(*train, 1, 1) == std::vector<int64_t>{'f', 'g', 'h', 'i'});
  CHECK(read_field<int64_t>(*evaluation, 0, 0) == std::vector<int64_t>{'v', 'w', 'x', 'y'});
  CHECK(open_dataset("text:tokens=29,held=0,file=" + file.string(), "evaluation")->size() == 1);
}

TEST_CASE("text: files of tokens are little-endian, and may name no token outside the vocabulary") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a.bin";
  write_bytes(file, std::string("\x01\x00\x00\x01\x02\x00\x63\x00", 8));
  const std::string spec = "text:tokens=3,held=0,format=uint16,file=" + file.string();
  CHECK(read_field<int64_t>(*open_dataset(spec + ",vocabulary=300", "train"), 0, 0) ==
        std::vector<int64_t>{1, 256, 2});
  const auto small = open_dataset(spec + ",vocabulary=50", "train");
  const std::string message = message_of<RunError>([&] { read_field<int64_t>(*small, 0, 0); });
  CHECK_THAT(message, Catch::Contains("token 1 is 256, expected less than 50"));
  CHECK_THAT(text_error(spec), Catch::Contains("vocabulary") && Catch::Contains("it is missing"));
  CHECK_THAT(text_error("text:format=uint32,vocabulary=9,held=0,tokens=2,file=" + file.string()),
             Catch::Contains("has 2 tokens, expected at least 3"));
  write_bytes(file, "abc");
  CHECK_THAT(text_error(spec + ",vocabulary=50"), Catch::Contains("has 3 bytes, expected a multiple of 2"));
  CHECK_THAT(text_error("text"), Catch::Contains("expected file=FILE"));
  CHECK_THAT(text_error("text:file=/nowhere/x"), Catch::Contains("/nowhere/x: No such file"));
  CHECK_THAT(text_error("text:file=" + folder.path().string()), Catch::Contains("is no plain file"));
}

TEST_CASE("masked-text: masks as BERT does, drawn from seed, epoch and sample alone") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a.txt";
  std::string bytes;
  for (int i = 0; i < 40000; ++i) bytes += static_cast<char>('a' + i % 26);
  write_bytes(file, bytes);
  const auto set = open_dataset("masked-text:tokens=40,held=0,file=" + file.string(), "train");
  CHECK(set->size() == 1000);
  CHECK(set->classes() == 257);
  int64_t masked = 0, same = 0, other = 0;
  for (int64_t i = 0; i < set->size(); ++i) {
    const auto tokens = read_field<int64_t>(*set, i, 0, {3, 1});
    const auto labels = read_field<int64_t>(*set, i, 1, {3, 1});
    int64_t asked = 0;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const int64_t truth = 'a' + (i * 40 + static_cast<int64_t>(t)) % 26;
      if (labels[t] == kNoLabel) {
        CHECK(tokens[t] == truth);
        continue;
      }
      ++asked;
      CHECK(labels[t] == truth);
      (tokens[t] == 256 ? masked : tokens[t] == truth ? same : other) += 1;
    }
    CHECK(asked == 6);  // 15 % of 40
  }
  CHECK(std::abs(masked - 4800) < 150);
  CHECK(std::abs(same - 600) < 100);
  CHECK(std::abs(other - 600) < 100);
  CHECK(read_field<int64_t>(*set, 7, 0, {3, 1}) == read_field<int64_t>(*set, 7, 0, {3, 1}));
  CHECK(read_field<int64_t>(*set, 7, 0, {3, 1}) != read_field<int64_t>(*set, 7, 0, {3, 2}));
  CHECK(read_field<int64_t>(*set, 7, 0, {3, 1}) != read_field<int64_t>(*set, 7, 0, {4, 1}));
  CHECK_THAT(text_error("masked-text:mask=300,vocabulary=256,file=" + file.string()),
             Catch::Contains("got 300"));
}

TEST_CASE("sentences are cut into words, numbers and marks") {
  using Words = std::vector<std::string>;
  CHECK(tokenised("Don't panic, it's 3.5 %-free (e-mail me).") ==
        Words{"Don't", "panic", ",", "it's", "3.5", "%", "-", "free", "(", "e-mail", "me", ")", "."});
  CHECK(tokenised(" \t Größe:\"%s\"") == Words{"Größe", ":", "\"", "%", "s", "\""});
  CHECK(tokenised("").empty());
}

TEST_CASE("translation: sides, their ends, padding and labels, and words of the training pairs only") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "pairs.tsv";
  write_bytes(file, "the cat\tdie Katze\nthe dog\tder Hund\r\n\nthe long sentence is too long\tzu lang\n");
  const std::string spec = "translation:source=4,target=4,held=0,vocabulary=7,file=" + file.string();
  const auto set = open_dataset(spec, "train");
  REQUIRE(set->size() == 2);
  CHECK(set->classes() == 7);
  REQUIRE(set->fields().size() == 3);
  // "the" is the most frequent word, then "long", then the first of the rest in byte order.
  using V = Vocabulary;
  CHECK(read_field<int64_t>(*set, 0, 0) == std::vector<int64_t>{4, V::kUnknown, V::kEnd, V::kPadding});
  CHECK(read_field<int64_t>(*set, 1, 1) == std::vector<int64_t>{V::kBegin, V::kUnknown, 6, V::kPadding});
  CHECK(read_field<int64_t>(*set, 1, 2) == std::vector<int64_t>{V::kUnknown, 6, V::kEnd, kNoLabel});
  REQUIRE(set->remarks().size() == 1);
  CHECK_THAT(set->remarks()[0], Catch::Contains("1 pairs of the split 'train' are longer"));

  // The vocabulary lies beside the file, is taken from there, and is made again when the file changes.
  const auto cache = folder.path() / "pairs.tsv.vocabulary-7";
  REQUIRE(std::filesystem::exists(cache));
  std::string text = read_file(cache);
  const size_t the = text.find("\nthe\n");
  REQUIRE(the != std::string::npos);
  text.replace(the, 5, "\ndog\n");
  write_bytes(cache, text);
  CHECK(read_field<int64_t>(*open_dataset(spec, "train"), 1, 0)[1] == 4);
  write_bytes(file, "a cat\teine Katze\n");
  CHECK(read_field<int64_t>(*open_dataset(spec, "train"), 0, 0) ==
        std::vector<int64_t>{5, 6, V::kEnd, V::kPadding});  // Katze, a, cat
}

TEST_CASE("translation: buckets by length part the pairs, number words alike, and leave less padding") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "pairs.tsv";
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    std::string pairs;
    const auto sentence = [&] {
      std::string text;
      for (size_t words = 1 + random() % (random() % 4 == 0 ? 20 : 5); words > 0; --words)
        text += " w" + std::to_string(random() % 40);
      return text;
    };
    for (int i = 0; i < 60; ++i) pairs += sentence() + "\t" + sentence() + "\n";
    write_bytes(file, pairs);

    const auto open = [&](int64_t length, int64_t longer_than) {
      const std::string n = std::to_string(length);
      return open_dataset("translation:source=" + n + ",target=" + n + ",longer_than=" +
                              std::to_string(longer_than) + ",vocabulary=30,held=0,file=" + file.string(),
                          "train");
    };
    using Sentences = std::vector<std::vector<int64_t>>;  // of all three fields, without what fills them up
    const auto add_all = [](const Dataset& set, std::multiset<Sentences>& all) {
      for (int64_t i = 0; i < set.size(); ++i) {
        Sentences one;
        for (size_t field = 0; field < 3; ++field) {
          one.push_back(read_field<int64_t>(set, i, field));
          while (one.back().back() == (field == 2 ? kNoLabel : Vocabulary::kPadding)) one.back().pop_back();
        }
        all.insert(one);
      }
    };
    std::multiset<Sentences> whole, parts;
    const auto one = open(21, 0);
    CHECK(one->size() == 60);
    add_all(*one, whole);
    int64_t places = 0, longer_than = 0;
    for (const int64_t length : {4, 9, 21}) {
      const auto bucket = open(length, longer_than);
      add_all(*bucket, parts);
      places += bucket->size() * length;
      longer_than = length;
    }
    CHECK(parts == whole);
    CHECK(places < one->size() * 21);
  }
}

TEST_CASE("translation: what is wrong in a file is named by its line") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "pairs.tsv";
  const auto refused = [&](const std::string& bytes) {
    write_bytes(file, bytes);
    return text_error("translation:file=" + file.string());
  };
  CHECK_THAT(refused("a\tb\nno tab here\n"), Catch::Contains("pairs.tsv:2: has no tab"));
  CHECK_THAT(refused("a\tb\tc\n"), Catch::Contains("pairs.tsv:1: has more than one tab"));
  CHECK_THAT(refused("a\t \n"), Catch::Contains("pairs.tsv:1: one side is empty"));
  CHECK_THAT(refused("\n"), Catch::Contains("holds no pair"));
  CHECK_THAT(text_error("translation"), Catch::Contains("expected file=PAIRS.tsv"));
  write_bytes(file, "one two three four\tx\n");
  CHECK_THAT(text_error("translation:source=3,held=0,file=" + file.string()),
             Catch::Contains("1 are too long"));
}

TEST_CASE("BLEU of sentences worked out by hand") {
  const auto bleu = [](const std::vector<int64_t>& made, const std::vector<int64_t>& reference) {
    CorpusBleu corpus(1);
    corpus.add(made, reference);
    return corpus.value();
  };
  CHECK(bleu({4, 5, 6, 7, 8}, {4, 5, 6, 7, 8}) == Approx(1));
  // 6 of 7 words, 4 of 6 pairs, 2 of 5, 1 of 4; as long as the reference.
  CHECK(bleu({4, 5, 6, 7, 9, 8, 4}, {4, 5, 6, 7, 8, 4, 10}) ==
        Approx(std::pow(6.0 / 7 * 4 / 6 * 2 / 5 * 1 / 4, 0.25)));
  // Shorter than the reference.
  CHECK(bleu({4, 5, 6, 7}, {4, 5, 6, 7, 8}) == Approx(std::exp(1 - 5.0 / 4)));
  CHECK(bleu({4, 4, 4, 4, 4}, {4, 5, 6, 7, 8}) == 0);
  CHECK(bleu({1, 1, 1, 1}, {1, 1, 1, 1}) == 0);  // what has no number matches nothing
  CHECK(bleu({}, {4}) == 0);
}

}  // namespace
}  // namespace pipewright
