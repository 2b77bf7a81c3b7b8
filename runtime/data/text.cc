// Texts for language models: windows of a row of tokens, to predict the next one or the masked ones.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "graph/error.h"
#include "graph/random.h"
#include "runtime/data/sequences.h"
#include "runtime/data/sets.h"
#include "runtime/data/token_file.h"

namespace pipewright {
namespace {

constexpr uint64_t kMaskPurpose = 0x4d41534b;  // keeps this stream apart from those of the other data sets
constexpr int64_t kMostTokens = 1000000;

std::vector<DataField> token_fields(int64_t tokens) {
  return {{"tokens", {"int64", {tokens}}}, {"labels", {"int64", {tokens}}}};
}

/// Sample i: tokens i * n to i * n + n - 1 of the split; its labels are the tokens that follow each.
class Text : public Dataset {
 public:
  Text(SpecOptions& options, const std::string& split)
      : tokens_(options.integer("tokens", 64, 1, kMostTokens)),
        file_(options, split, 0),
        fields_(token_fields(tokens_)) {
    file_.require(tokens_ + 1, split, options);
  }

  int64_t size() const override { return std::min((file_.size() - 1) / tokens_, kMaximumSamples); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return file_.vocabulary(); }
  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    file_.read(index * tokens_ + static_cast<int64_t>(field), tokens_, static_cast<int64_t*>(into));
  }

 private:
  int64_t tokens_;
  TokenFile file_;
  std::vector<DataField> fields_;
};

/// Windows of which some tokens are masked as in BERT (Devlin et al. 2018, A.1): of the chosen ones 80 %
/// become the mask, 10 % any token, 10 % stay; labels are the tokens that were chosen, kNoLabel elsewhere.
class MaskedText : public Dataset {
 public:
  MaskedText(SpecOptions& options, const std::string& split)
      : tokens_(options.integer("tokens", 128, 1, kMostTokens)),
        chosen_(std::max<int64_t>(
            1, std::llround(options.number("masked", 0.15, 0, 1) * static_cast<double>(tokens_)))),
        mask_(options.integer("mask", -1, -1, int64_t{1} << 31)),
        file_(options, split, mask_ < 0 ? 1 : 0),
        fields_(token_fields(tokens_)) {
    // Without a mask of the vocabulary's own, one more token is it.
    if (mask_ < 0) mask_ = file_.vocabulary() - 1;
    if (mask_ >= file_.vocabulary()) {
      options.fail("mask", "got " + std::to_string(mask_) + ", expected a token, less than vocabulary=" +
                               std::to_string(file_.vocabulary()));
    }
    file_.require(tokens_, split, options);
  }

  int64_t size() const override { return std::min(file_.size() / tokens_, kMaximumSamples); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return file_.vocabulary(); }

  std::string augmentation() const override { return "which tokens are masked"; }

  void read(int64_t index, size_t field, SampleKey key, void* into) const override {
    auto* out = static_cast<int64_t*>(into);
    file_.read(index * tokens_, tokens_, out);
    KeyedRandom random{kMaskPurpose, key.seed, static_cast<uint64_t>(key.epoch),
                       static_cast<uint64_t>(index)};
    // The first places of a Fisher-Yates shuffle.
    std::vector<int64_t> places(static_cast<size_t>(tokens_));
    std::iota(places.begin(), places.end(), 0);
    for (int64_t i = 0; i < chosen_; ++i) {
      std::swap(places[static_cast<size_t>(i)],
                places[static_cast<size_t>(i) + random.below(static_cast<uint64_t>(tokens_ - i))]);
    }
    std::vector<int64_t> labels(static_cast<size_t>(tokens_), kNoLabel);
    for (int64_t i = 0; i < chosen_; ++i) {
      const int64_t place = places[static_cast<size_t>(i)];
      labels[static_cast<size_t>(place)] = out[place];
      const uint64_t fate = random.below(10);
      const auto any = static_cast<int64_t>(random.below(static_cast<uint64_t>(file_.vocabulary())));
      if (fate < 8) {
        out[place] = mask_;
      } else if (fate == 8) {
        out[place] = any;
      }
    }
    if (field == 1) std::copy(labels.begin(), labels.end(), out);
  }

 private:
  int64_t tokens_, chosen_, mask_;
  TokenFile file_;
  std::vector<DataField> fields_;
};

}  // namespace

std::unique_ptr<Dataset> open_text(SpecOptions& options, const std::string& split) {
  return std::make_unique<Text>(options, split);
}

std::unique_ptr<Dataset> open_masked_text(SpecOptions& options, const std::string& split) {
  return std::make_unique<MaskedText>(options, split);
}

}  // namespace pipewright
