// BERT's word pieces: known examples (those of transformers' BertTokenizerFast), and a plain cutter that
// looks through the whole vocabulary.
#include "runtime/data/word_pieces.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/random.h"
#include "tests/runtime/data/texts.h"

namespace pipewright {
namespace {

using testing::TemporaryFolder;
using Strings = std::vector<std::string>;

/// A vocabulary that is asked for words and not for numbers.
class Pieces {
 public:
  Pieces(const Strings& tokens, bool lower = true) : tokens_(tokens) {
    std::string text;
    for (const std::string& token : tokens) text += token + "\n";
    testing::write_bytes(folder_.path() / "vocab.txt", text);
    pieces_ = std::make_unique<WordPieces>(folder_.path() / "vocab.txt", lower);
  }
  Strings operator()(const std::string& text) const {
    Strings words;
    int64_t behind = 0;
    for (const WordPiece& piece : pieces_->pieces_of(text)) {
      CHECK(behind <= piece.begin);
      CHECK(piece.begin < piece.end);
      behind = piece.end;
      words.push_back(tokens_[static_cast<size_t>(piece.token)]);
    }
    CHECK(behind <= static_cast<int64_t>(text.size()));
    return words;
  }
  /// What each piece stands for.
  Strings spans(const std::string& text) const {
    Strings parts;
    for (const WordPiece& piece : pieces_->pieces_of(text))
      parts.push_back(
          text.substr(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.end - piece.begin)));
    return parts;
  }

 private:
  TemporaryFolder folder_;
  Strings tokens_;
  std::unique_ptr<WordPieces> pieces_;
};

const Strings kTokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un",   "##aff", "##able",
                         "runn",  "##ing", "want",  "##ed",  ",",      "the",  "(",     ")",
                         "'",     "s",     "cafe",  "##s",   "!",      "中",   "国",    "人",
                         "2",     "$",     "a",     ".",     "naive",  "##te", "σ",     "##ς",
                         "##σ",   "i",     "don",   "t",     "ß",      "##a"};

TEST_CASE("word pieces: known examples, without case and accents") {
  const Pieces pieces(kTokens);
  CHECK(pieces("UNwanted,running") == Strings{"[UNK]", ",", "runn", "##ing"});
  CHECK(pieces("unaffable  (the)") == Strings{"un", "##aff", "##able", "(", "the", ")"});
  CHECK(pieces("Café's! naïveté") == Strings{"cafe", "'", "s", "!", "naive", "##te"});
  CHECK(pieces("中国人a2010") == Strings{"中", "国", "人", "[UNK]"});
  // A no-break space divides, a space without width and the replacement character are not there.
  CHECK(pieces("\tthe\u00a0the\u200bthe\ufffd $2.") == Strings{"the", "[UNK]", "$", "2", "."});
  CHECK(pieces("Σίγμα ΣΣ") == Strings{"[UNK]", "σ", "##σ"});
  CHECK(pieces("İ DON'T ß") == Strings{"i", "don", "'", "t", "ß"});
  CHECK(pieces("the\u2028the－the") == Strings{"the", "the", "[UNK]", "the"});
  CHECK(pieces("cafe\u0301 .") == Strings{"cafe", "."});
  CHECK(pieces("thez unaffablez") == Strings{"[UNK]", "[UNK]"});
  CHECK(pieces("a" + std::string(99, 'a')) == [] {
    Strings all(100, "##a");
    all[0] = "a";
    return all;
  }());
  CHECK(pieces(std::string(101, 'a')) == Strings{"[UNK]"});
  CHECK(pieces("").empty());
  CHECK(pieces(" \n\u200b\u0301").empty());
  // Marks of the vocabulary are no tokens of a text.
  CHECK(pieces("[SEP]") == Strings{"[UNK]", "[UNK]", "[UNK]"});
}

TEST_CASE("word pieces: with case and accents") {
  const Pieces pieces(kTokens, /*lower=*/false);
  CHECK(pieces("Café's! cafe's") == Strings{"[UNK]", "'", "s", "!", "cafe", "'", "s"});
  CHECK(pieces("中国 DON'T ß") == Strings{"中", "国", "[UNK]", "'", "[UNK]", "ß"});
}

TEST_CASE("word pieces: each knows the bytes it stands for, accents included") {
  const Pieces pieces(kTokens);
  CHECK(pieces.spans("Un-affable CAFE\u0301s, naïveté.") ==
        Strings{"Un", "-", "affable", "CAFE\u0301", "s", ",", "naïve", "té", "."});
}

// Every beginning of the rest of the word, the longest first, against every token.
Strings plainly_cut(const std::string& word, const Strings& tokens) {
  Strings pieces;
  for (size_t begin = 0; begin < word.size();) {
    size_t end = word.size();
    for (; end > begin; --end) {
      const std::string part = (begin > 0 ? "##" : "") + word.substr(begin, end - begin);
      if (std::find(tokens.begin(), tokens.end(), part) == tokens.end()) continue;
      pieces.push_back(part);
      break;
    }
    if (end == begin) return {"[UNK]"};
    begin = end;
  }
  return pieces;
}

TEST_CASE("word pieces: random vocabularies and texts are cut as a plain search cuts them") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    KeyedRandom random{seed};
    const auto letters = [&](uint64_t most) {
      std::string text;
      for (uint64_t i = 1 + random.below(most); i > 0; --i) text += static_cast<char>('a' + random.below(3));
      return text;
    };
    std::set<std::string> drawn;
    for (uint64_t i = 1 + random.below(30); i > 0; --i)
      drawn.insert((random.below(2) ? "##" : "") + letters(4));
    Strings tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "."};
    tokens.insert(tokens.end(), drawn.begin(), drawn.end());
    const Pieces pieces(tokens);
    std::string text;
    Strings expected;
    for (int i = 0; i < 20; ++i) {
      const std::string word = letters(9);
      text += word;
      const Strings cut = plainly_cut(word, tokens);
      expected.insert(expected.end(), cut.begin(), cut.end());
      const bool stop = random.below(2) == 0;
      text += stop ? "." : std::string(1 + random.below(2), ' ');
      if (stop) expected.emplace_back(".");
    }
    CHECK(pieces(text) == expected);
  }
}

TEST_CASE("word pieces: what is wrong with a vocabulary is said with its line") {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& text) {
    testing::write_bytes(folder.path() / "vocab.txt", text);
    return testing::message_of<InputError>([&] { WordPieces(folder.path() / "vocab.txt", true); });
  };
  const std::string marks = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";
  CHECK_NOTHROW(Pieces({"[PAD]", "[UNK]", "[CLS]", "[SEP]"}));
  CHECK_THAT(message(""),
             Catch::Contains("vocab.txt: has no token [PAD]") && Catch::Contains("a token a line"));
  CHECK_THAT(message("[PAD]\n[UNK]\n[SEP]\n"), Catch::Contains("vocab.txt: has no token [CLS]"));
  CHECK_THAT(message(marks + "\na\n"), Catch::Contains("vocab.txt:5: is empty"));
  CHECK_THAT(message(marks + "a\r\nb\na\n"), Catch::Contains("vocab.txt:7: the token \"a\" is there twice"));
  CHECK_THAT(message(marks + "\xff\n"), Catch::Contains("vocab.txt:5: is not UTF-8"));
  CHECK_THAT(testing::message_of<InputError>([&] { WordPieces(folder.path() / "no.txt", true); }),
             Catch::Contains("no.txt"));
}

TEST_CASE("UTF-8 is told from what is none") {
  CHECK(utf8_prefix("") == 0);
  CHECK(utf8_prefix("aé中\U0001f600") == 10);
  CHECK(utf8_prefix("ab\xc3") == 2);
  CHECK(utf8_prefix("a\xed\xa0\x80z") == 1);  // half of a pair of UTF-16
  CHECK(utf8_prefix("a\xc0\x80") == 1);       // too long a form
}

}  // namespace
}  // namespace pipewright
