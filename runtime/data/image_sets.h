// The sets of classified images that benchmarks name (mnist, cifar10, imagenet, highres): what their samples
// are, how they are normalised and augmented, and the forms their files come in.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"

namespace pipewright {

/// What a set's images are normalised by: in colour (red, green, blue), and of one channel.
struct ImageNormalisation {
  Normalisation colour, grey;
  const Normalisation& of(int64_t channels) const { return channels == 1 ? grey : colour; }
};
/// ImageNet's; of grey, their averages.
inline const ImageNormalisation kImageNetNormalisation = {
    {{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}}, {{0.449F}, {0.226F}}};
inline const ImageNormalisation kCifar10Normalisation = {
    {{0.4914F, 0.4822F, 0.4465F}, {0.2023F, 0.1994F, 0.2010F}}, {{0.4734F}, {0.2009F}}};
inline const ImageNormalisation kMnistNormalisation = {
    {{0.1307F, 0.1307F, 0.1307F}, {0.3081F, 0.3081F, 0.3081F}}, {{0.1307F}, {0.3081F}}};

/// Defaults of the options of a folder of images.
struct ImageFolderStyle {
  int64_t image = 224;
  int64_t channels = 3;
  const char* crop = "resized";
  bool flip = true;
  bool border = true;  ///< evaluation leaves out a border of a sixteenth on each side: 224 of 256
  ImageNormalisation normalisation = kImageNetNormalisation;
};
std::unique_ptr<Dataset> open_image_folder(SpecOptions& options, const std::string& split,
                                           const ImageFolderStyle& style);

/// Watched while it is asked: the folder may be on a server that does not answer (graph/file_watch.h).
bool is_folder(const std::filesystem::path& path);

/// A set as it is published.
struct NamedImageSet {
  const char* name;
  int64_t classes;
  int64_t train, evaluation;  ///< samples of the splits
  /// Of each class, in a tree of files that has as many of each: floor(samples / classes).
  int64_t train_per_class() const { return train / classes; }
  int64_t evaluation_per_class() const { return evaluation / classes; }
  ImageFolderStyle style;
};
/// In the order of their size.
const std::vector<NamedImageSet>& named_image_sets();

/// Options root, image, channels, samples: the IDX files of MNIST.
std::unique_ptr<Dataset> open_mnist_files(SpecOptions& options, const std::string& split);
/// Options root, samples: the binary form of CIFAR-10.
std::unique_ptr<Dataset> open_cifar10_files(SpecOptions& options, const std::string& split);

}  // namespace pipewright
