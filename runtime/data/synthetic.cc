// Data sets that need no files and that a model can learn: what is learnt is a pure function of the option
// `seed`, each sample one of (seed, split, index).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/error.h"
#include "graph/random.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

// Keys that keep the streams of one seed apart.
enum Purpose : uint64_t { kPrototype = 1, kImage = 2, kSuccessor = 3, kText = 4 };

uint64_t split_key(const std::string& split) { return split == kTrainSplit ? 0 : 1; }

constexpr int64_t kLargestSeed = INT64_MAX;

// Each class has a prototype: a coarse grid of random values, interpolated to the image's size, as smooth as
// what convolutions are made for. An image is its class's prototype plus noise.
class SyntheticImages : public Dataset {
 public:
  SyntheticImages(SpecOptions& options, const std::string& split)
      : classes_(options.integer("classes", 10, 2, 100000)),
        image_(options.integer("image", 28, 1, kMaximumImageSize)),
        channels_(options.integer("channels", 1, 1, 64)),
        samples_(options.integer("samples", 10000, 1, kMaximumSamples)),
        noise_(static_cast<float>(options.number("noise", 1, 0, 1000))),
        seed_(static_cast<uint64_t>(options.integer("seed", 0, 0, kLargestSeed))),
        split_(split_key(split)),
        grid_(std::min<int64_t>(image_, 7)),
        fields_(image_fields(channels_, image_)) {
    options.finish();
    for (int64_t i = 0; i < image_; ++i) axis_.push_back(point(i));
  }

  int64_t size() const override { return samples_; }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return classes_; }

  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    KeyedRandom random{kImage, seed_, split_, static_cast<uint64_t>(index)};
    const auto label = static_cast<int64_t>(random.below(static_cast<uint64_t>(classes_)));
    if (field == kLabelsField) {
      std::memcpy(into, &label, sizeof(label));
    } else {
      draw(label, random, static_cast<float*>(into));
    }
  }

 private:
  // Where a row or column of the image lies on the grid: between `below` and `below + 1`.
  struct GridPoint {
    int64_t below;
    float weight;  // of below + 1
  };

  GridPoint point(int64_t i) const {
    if (grid_ < 2) return {0, 0};
    const float at = static_cast<float>(i) * static_cast<float>(grid_ - 1) / static_cast<float>(image_ - 1);
    const auto below = std::min<int64_t>(static_cast<int64_t>(at), grid_ - 2);
    return {below, at - static_cast<float>(below)};
  }

  void draw(int64_t label, KeyedRandom& random, float* into) const {
    // Made again for each image: 49 draws a channel are little beside the noise, and keep 100,000 classes in
    // no memory.
    KeyedRandom prototype{kPrototype, seed_, static_cast<uint64_t>(label)};
    // One row and column more than drawn, so that `below + 1` may be read (with weight 0) where the grid is 1
    // wide.
    const int64_t stride = grid_ + 1;
    float grid[8 * 8] = {};
    for (int64_t channel = 0; channel < channels_; ++channel) {
      for (int64_t y = 0; y < grid_; ++y) {
        for (int64_t x = 0; x < grid_; ++x) grid[y * stride + x] = 1.5F * prototype.bell();
      }
      for (const GridPoint& y : axis_) {
        const float* low = grid + y.below * stride;
        const float* high = low + stride;
        for (const GridPoint& x : axis_) {
          const float left = low[x.below] + y.weight * (high[x.below] - low[x.below]);
          const float right = low[x.below + 1] + y.weight * (high[x.below + 1] - low[x.below + 1]);
          *into++ = left + x.weight * (right - left) + noise_ * random.bell();
        }
      }
    }
  }

  int64_t classes_, image_, channels_, samples_;
  float noise_;
  uint64_t seed_, split_;
  int64_t grid_;
  std::vector<GridPoint> axis_;
  std::vector<DataField> fields_;
};

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

std::unique_ptr<Dataset> open_synthetic_images(SpecOptions& options, const std::string& split) {
  return std::make_unique<SyntheticImages>(options, split);
}

std::unique_ptr<Dataset> open_synthetic_text(SpecOptions& options, const std::string& split) {
  return std::make_unique<SyntheticText>(options, split);
}

}  // namespace pipewright
