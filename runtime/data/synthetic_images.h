// Images that need no files and that a model can learn. Each class has a prototype: a coarse grid of random
// values, interpolated to the image's size, as smooth as what convolutions are made for. An image is its
// class's prototype plus noise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/random.h"
#include "runtime/data/dataset.h"

namespace pipewright {

/// Draws the images of one seed. Safe to use from several threads.
class SyntheticPictures {
 public:
  SyntheticPictures(int64_t image, int64_t channels, float noise, uint64_t seed);
  /// (channels, image, image) values of mean 0 and order one; `random` draws the noise.
  void draw(int64_t label, KeyedRandom& random, float* into) const;

 private:
  // Where a row or column of the image lies on the grid: between `below` and `below + 1`.
  struct GridPoint {
    int64_t below;
    float weight;  // of below + 1
  };
  GridPoint point(int64_t i) const;

  int64_t image_, channels_;
  float noise_;
  uint64_t seed_;
  int64_t grid_;
  std::vector<GridPoint> axis_;
};

struct SyntheticImageSet {
  int64_t classes;
  int64_t image;  ///< pixels a side
  int64_t channels;
  int64_t samples;
  float noise = 1;
  uint64_t seed = 0;
};
/// The label of sample i is drawn, too: classes are balanced but for chance.
std::unique_ptr<Dataset> make_synthetic_images(const SyntheticImageSet& set, const std::string& split);

}  // namespace pipewright
