#include "runtime/data/synthetic_images.h"

#include <algorithm>
#include <cstring>

#include "runtime/data/sets.h"

namespace pipewright {
namespace {

// Keys that keep the streams of one seed apart.
enum Purpose : uint64_t { kPrototype = 1, kImage = 2 };

constexpr int64_t kGrid = 7;

class SyntheticImages : public Dataset {
 public:
  SyntheticImages(const SyntheticImageSet& set, const std::string& split)
      : classes_(set.classes),
        samples_(set.samples),
        seed_(set.seed),
        split_(split_key(split)),
        pictures_(set.image, set.channels, set.noise, set.seed),
        fields_(image_fields(set.channels, set.image)) {}

  int64_t size() const override { return samples_; }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return classes_; }

  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    KeyedRandom random{kImage, seed_, split_, static_cast<uint64_t>(index)};
    const auto label = static_cast<int64_t>(random.below(static_cast<uint64_t>(classes_)));
    if (field == kLabelsField) {
      std::memcpy(into, &label, sizeof(label));
    } else {
      pictures_.draw(label, random, static_cast<float*>(into));
    }
  }

 private:
  int64_t classes_, samples_;
  uint64_t seed_, split_;
  SyntheticPictures pictures_;
  std::vector<DataField> fields_;
};

}  // namespace

SyntheticPictures::SyntheticPictures(int64_t image, int64_t channels, float noise, uint64_t seed)
    : image_(image), channels_(channels), noise_(noise), seed_(seed), grid_(std::min(image, kGrid)) {
  for (int64_t i = 0; i < image_; ++i) axis_.push_back(point(i));
}

SyntheticPictures::GridPoint SyntheticPictures::point(int64_t i) const {
  if (grid_ < 2) return {0, 0};
  const float at = static_cast<float>(i) * static_cast<float>(grid_ - 1) / static_cast<float>(image_ - 1);
  const auto below = std::min<int64_t>(static_cast<int64_t>(at), grid_ - 2);
  return {below, at - static_cast<float>(below)};
}

void SyntheticPictures::draw(int64_t label, KeyedRandom& random, float* into) const {
  // Made again for each image: 49 draws a channel are little beside the noise, and keep 100,000 classes in
  // no memory.
  KeyedRandom prototype{kPrototype, seed_, static_cast<uint64_t>(label)};
  // One row and column more than drawn, so that `below + 1` may be read (with weight 0) where the grid is 1
  // wide.
  const int64_t stride = grid_ + 1;
  float grid[(kGrid + 1) * (kGrid + 1)] = {};
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

std::unique_ptr<Dataset> make_synthetic_images(const SyntheticImageSet& set, const std::string& split) {
  return std::make_unique<SyntheticImages>(set, split);
}

std::unique_ptr<Dataset> open_synthetic_images(SpecOptions& options, const std::string& split) {
  SyntheticImageSet set;
  set.classes = options.integer("classes", 10, 2, 100000);
  set.image = options.integer("image", 28, 1, kMaximumImageSize);
  set.channels = options.integer("channels", 1, 1, 64);
  set.samples = options.integer("samples", 10000, 1, kMaximumSamples);
  set.noise = static_cast<float>(options.number("noise", 1, 0, 1000));
  set.seed = static_cast<uint64_t>(options.integer("seed", 0, 0, kLargestSeed));
  options.finish();
  return make_synthetic_images(set, split);
}

}  // namespace pipewright
