// Text that needs no files and that a model can learn: what is learnt is a pure function of the option
// `seed`, each sample one of (seed, split, index).
#include "graph/random.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

// Keys that keep the streams of one seed apart; synthetic_images.cc has others.
enum TextPurpose : uint64_t { kSuccessor = 3, kText = 4 };

// Text from a Markov chain of first order: each token has four likely successors, taken with probability 1/2,
// 1/4, 1/8 and 1/8. A model that has learnt them all has a loss of 1.75 bits = 1.213 nats a token, against
// log(vocabulary).
class SyntheticText : public Dataset {
 public:
  SyntheticText(SpecOptions& options, const std::string& split)
      : vocabulary_(options.integer("vocabulary", 256, 2, 1000000)),
        tokens_(options.integer("tokens", 64, 1, 1000000)),
        samples_(options.integer("samples", 10000, 1, kMaximumSamples)),
        seed_(static_cast<uint64_t>(options.integer("seed", 0, 0, kLargestSeed))),
        split_(split_key(split)),
        fields_({{"tokens", {"int64", {tokens_}}}, {"labels", {"int64", {tokens_}}}}) {
    options.finish();
  }

  int64_t size() const override { return samples_; }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return vocabulary_; }

  // A sample is tokens + 1 steps of the chain: "tokens" all but the last, "labels" all but the first.
  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    KeyedRandom random{kText, seed_, split_, static_cast<uint64_t>(index)};
    int64_t* out = static_cast<int64_t*>(into);
    auto token = static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary_)));
    for (int64_t i = 0; i < tokens_; ++i) {
      const int64_t next = successor(token, random);
      *out++ = field == 0 ? token : next;
      token = next;
    }
  }

 private:
  int64_t successor(int64_t token, KeyedRandom& random) const {
    const uint64_t draw = random.next() >> 61;  // 0..7
    const uint64_t which = draw < 4 ? 0 : draw < 6 ? 1 : draw - 4;
    KeyedRandom chosen{kSuccessor, seed_, static_cast<uint64_t>(token), which};
    return static_cast<int64_t>(chosen.below(static_cast<uint64_t>(vocabulary_)));
  }

  int64_t vocabulary_, tokens_, samples_;
  uint64_t seed_, split_;
  std::vector<DataField> fields_;
};

}  // namespace

std::unique_ptr<Dataset> open_synthetic_text(SpecOptions& options, const std::string& split) {
  return std::make_unique<SyntheticText>(options, split);
}

}  // namespace pipewright
