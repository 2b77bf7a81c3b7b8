// Pairs of sentences for translation: a line each, source and target with a tab between.
#include <algorithm>
#include <optional>
#include <sstream>

#include "graph/error.h"
#include "graph/json.h"
#include "models/run/random_key.h"
#include "runtime/data/sequences.h"
#include "runtime/data/sets.h"
#include "runtime/data/vocabulary.h"

namespace pipewright {
namespace {

constexpr size_t kSource = 0, kTarget = 1;
constexpr int64_t kLongestSentence = 1 << 16;

struct Pair {
  std::string source;  // as it is written
  std::vector<std::string> source_words, target_words;
};

std::vector<Pair> pairs_of(const std::string& file, const std::string& text) {
  std::vector<Pair> pairs;
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    const size_t tab = line.find('\t');
    const auto fail = [&](const std::string& message) {
      throw InputError(file + ":" + std::to_string(number) + ": " + message,
                       "Expected a pair of sentences on each line, SOURCE<tab>TARGET, in UTF-8.");
    };
    if (tab == std::string::npos) fail("has no tab");
    if (line.find('\t', tab + 1) != std::string::npos) fail("has more than one tab");
    Pair pair{line.substr(0, tab), tokenised(line.substr(0, tab)), tokenised(line.substr(tab + 1))};
    if (pair.source_words.empty() || pair.target_words.empty()) fail("one side is empty");
    pairs.push_back(std::move(pair));
  }
  if (pairs.empty()) throw InputError(file + ": holds no pair of sentences");
  return pairs;
}

class Translation : public GeneratedDataset {
 public:
  Translation(SpecOptions& options, const std::string& split)
      : lengths_{options.integer("source", 50, 1, kLongestSentence),
                 options.integer("target", 50, 2, kLongestSentence)} {
    const std::string file = options.string("file", "");
    const int64_t words = options.integer("vocabulary", 8000, Vocabulary::kFirstWord + 1, 1 << 22);
    longer_than_ = options.integer("longer_than", 0, 0, std::max(lengths_[kSource], lengths_[kTarget]) - 1);
    const double held = options.number("held", 0.02, 0, 0.9);
    std::string cache = options.string("cache", "");
    options.finish();
    if (file.empty()) options.fail("file", "it is missing; expected file=PAIRS.tsv");
    if (cache.empty()) cache = file + ".vocabulary-" + std::to_string(words);

    const std::string text = read_file(file);
    const std::vector<Pair> all = pairs_of(file, text);
    // A source sentence that occurs twice is in one split.
    const auto is_held = [&](const Pair& pair) {
      return static_cast<double>(name_hash(pair.source) >> 11) * 0x1p-53 < held;
    };
    const std::string made_of =
        digest_of(text) + ", words " + std::to_string(words) + ", held " + std::to_string(held);
    make_vocabulary(all, is_held, cache, made_of, words);

    for (const Pair& pair : all) {
      if (held > 0 && is_held(pair) != (split == kEvaluationSplit)) continue;
      auto source = numbers_of(pair.source_words), target = numbers_of(pair.target_words);
      // Each side has one token more: the source its end; the target its begin, as labels its end.
      const auto source_length = static_cast<int64_t>(source.size()) + 1;
      const auto target_length = static_cast<int64_t>(target.size()) + 1;
      if (source_length > lengths_[kSource] || target_length > lengths_[kTarget]) {
        ++left_out_;
        continue;
      }
      if (std::max(source_length, target_length) <= longer_than_) continue;  // of another bucket
      filled_ += source_length + target_length;
      sentences_[kSource].push_back(std::move(source));
      sentences_[kTarget].push_back(std::move(target));
    }
    if (sentences_[kSource].empty() || static_cast<int64_t>(sentences_[kSource].size()) > kMaximumSamples) {
      throw InputError(
          "data '" + options.spec().text() + "': the split '" + split + "' has " +
              std::to_string(sentences_[kSource].size()) + " pairs that fit, " + std::to_string(left_out_) +
              " are too long",
          "give more pairs, a larger source= and target=, a smaller longer_than=, or another held=");
    }
    for (const size_t side : {kSource, kTarget}) {
      fields_.push_back({side == kSource ? "source" : "target", {"int64", {lengths_[side]}}});
    }
    fields_.push_back({"labels", {"int64", {lengths_[kTarget]}}});
    split_ = split;
  }

  int64_t size() const override { return static_cast<int64_t>(sentences_[kSource].size()); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return vocabulary_->size(); }
  Generation generation() const override {
    return {"target", Vocabulary::kBegin, Vocabulary::kEnd, Vocabulary::kUnknown};
  }

  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    auto* out = static_cast<int64_t*>(into);
    const bool labels = field == 2;
    const auto& sentence = sentences_[field == kSource ? kSource : kTarget][static_cast<size_t>(index)];
    auto* const end = out + fields_[field].sample_type.elements();
    if (field == kTarget) *out++ = Vocabulary::kBegin;
    out = std::copy(sentence.begin(), sentence.end(), out);
    if (field != kTarget) *out++ = Vocabulary::kEnd;
    std::fill(out, end, labels ? kNoLabel : Vocabulary::kPadding);
  }

  std::vector<std::string> remarks() const override {
    const std::string lengths =
        "source=" + std::to_string(lengths_[kSource]) + ",target=" + std::to_string(lengths_[kTarget]);
    std::vector<std::string> lines;
    if (left_out_ > 0) {
      lines.push_back(std::to_string(left_out_) + " pairs of the split '" + split_ + "' are longer than " +
                      lengths + " and left out");
    }
    const int64_t padding = 100 - 100 * filled_ / (size() * (lengths_[kSource] + lengths_[kTarget]));
    if (padding > 50) {
      lines.push_back(std::to_string(padding) + " % of the places of the split '" + split_ + "' with " +
                      lengths + " are padding; longer_than= makes buckets of similar lengths");
    }
    return lines;
  }

 private:
  template <typename IsHeld>
  void make_vocabulary(const std::vector<Pair>& pairs, const IsHeld& is_held, const std::string& cache,
                       const std::string& made_of, int64_t words) {
    if (Vocabulary::is_of(cache, made_of)) {
      vocabulary_.emplace(cache, made_of);
      return;
    }
    std::unordered_map<std::string, int64_t> counts;
    for (const Pair& pair : pairs) {
      if (is_held(pair)) continue;
      for (const auto* side : {&pair.source_words, &pair.target_words})
        for (const std::string& word : *side) ++counts[word];
    }
    vocabulary_.emplace(counts, words);
    try {
      vocabulary_->write(cache, made_of);
    } catch (const RunError&) {
      // A folder that cannot be written to: the vocabulary is made each time.
    }
  }

  std::vector<int32_t> numbers_of(const std::vector<std::string>& words) const {
    std::vector<int32_t> numbers;
    for (const std::string& word : words)
      numbers.push_back(static_cast<int32_t>(vocabulary_->number_of(word)));
    return numbers;
  }

  int64_t lengths_[2];
  std::string split_;
  std::optional<Vocabulary> vocabulary_;
  std::vector<std::vector<int32_t>> sentences_[2];
  int64_t longer_than_ = 0;
  int64_t left_out_ = 0;
  int64_t filled_ = 0;  // places with a token
  std::vector<DataField> fields_;
};

}  // namespace

std::unique_ptr<Dataset> open_translation(SpecOptions& options, const std::string& split) {
  return std::make_unique<Translation>(options, split);
}

}  // namespace pipewright
