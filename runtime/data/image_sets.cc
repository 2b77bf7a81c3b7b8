#include "runtime/data/image_sets.h"

#include <filesystem>

#include "graph/error.h"
#include "runtime/data/sets.h"
#include "runtime/data/synthetic_images.h"

namespace pipewright {
namespace {

const NamedImageSet& named(const std::string& name) {
  for (const NamedImageSet& set : named_image_sets())
    if (set.name == name) return set;
  PW_CHECK(false, "no image set " << name);
  return named_image_sets().front();
}

// Of the set's sizes and classes, and of the shape that the options ask for.
std::unique_ptr<Dataset> open_synthetic(SpecOptions& options, const std::string& split,
                                        const NamedImageSet& set, bool any_shape) {
  if (options.has("root"))
    options.fail("root", "synthetic=yes needs no files", "leave out root= or synthetic=yes");
  const int64_t all = split == kTrainSplit ? set.train : set.evaluation;
  SyntheticImageSet made;
  made.classes = set.classes;
  made.image = any_shape ? options.integer("image", set.style.image, 1, kMaximumImageSize) : set.style.image;
  made.channels = any_shape
                      ? std::stoll(options.choice("channels", std::to_string(set.style.channels), {"1", "3"}))
                      : set.style.channels;
  made.samples = options.integer("samples", all, 1, all);
  made.seed = static_cast<uint64_t>(options.integer("seed", 0, 0, kLargestSeed));
  options.finish();
  return make_synthetic_images(made, split);
}

using OpenFiles = std::unique_ptr<Dataset> (*)(SpecOptions& options, const std::string& split);

// `files`: of the form that is the set's own; nullptr where that is a folder of images. Options that one form
// has and another has not are refused there with a reason; only what no form has is unknown.
std::unique_ptr<Dataset> open_named(SpecOptions& options, const std::string& split, OpenFiles files,
                                    bool any_shape) {
  const NamedImageSet& set = named(options.spec().name);
  if (options.choice("synthetic", "no", {"yes", "no"}) == "yes")
    return open_synthetic(options, split, set, any_shape);
  options.integer("seed", 0, 0, kLargestSeed);
  if (options.has("seed")) options.fail("seed", "it draws the images of synthetic=yes; files have none");
  options.integer("samples", kMaximumSamples, 1, kMaximumSamples);
  if (!options.has("root")) {
    for (const char* of_a_form : {"image", "channels", "resize", "crop", "flip", "corrupt", "max_pixels"})
      options.has(of_a_form);
    options.finish();
    options.fail("root", "it is missing; expected root=DIR",
                 std::string("likely: ") + set.name + ":root=DIR, or " + set.name +
                     ":synthetic=yes, which needs no files");
  }
  const std::filesystem::path root = options.string("root", "");
  if (files && !is_folder(root / "train")) return files(options, split);
  if (options.has("samples"))
    options.fail("samples", "the images of a folder lie class by class: the first ones would be of one class",
                 "a smaller tree: pipewright-profiler make-images --per-class N");
  return open_image_folder(options, split, set.style);
}

}  // namespace

const std::vector<NamedImageSet>& named_image_sets() {
  static const std::vector<NamedImageSet> sets = {
      {"mnist", 10, 60'000, 10'000, {28, 1, "centre", false, false, kMnistNormalisation}},
      {"cifar10", 10, 50'000, 10'000, {32, 3, "padded", true, false, kCifar10Normalisation}},
      {"imagenet", 1000, 1'281'167, 50'000, {224, 3, "resized", true, true, kImageNetNormalisation}},
      {"highres", 1000, 50'000, 10'000, {512, 3, "centre", false, false, kImageNetNormalisation}},
  };
  return sets;
}

std::unique_ptr<Dataset> open_mnist(SpecOptions& options, const std::string& split) {
  return open_named(options, split, open_mnist_files, true);
}

std::unique_ptr<Dataset> open_cifar10(SpecOptions& options, const std::string& split) {
  return open_named(options, split, open_cifar10_files, false);
}

std::unique_ptr<Dataset> open_imagenet(SpecOptions& options, const std::string& split) {
  return open_named(options, split, nullptr, true);
}

std::unique_ptr<Dataset> open_highres(SpecOptions& options, const std::string& split) {
  return open_named(options, split, nullptr, true);
}

}  // namespace pipewright
