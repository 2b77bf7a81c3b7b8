// The data sets that the table of registry.cc lists, and what they share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/dataset.h"

namespace pipewright {

std::unique_ptr<Dataset> open_fashion_mnist(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_mnist(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_cifar10(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_imagenet(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_highres(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_image_folder(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_synthetic_images(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_synthetic_text(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_text(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_masked_text(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_translation(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_sentences(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_questions(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_wiki_shards(SpecOptions& options, const std::string& split);
std::unique_ptr<Dataset> open_tensor_file(SpecOptions& options, const std::string& split);

inline constexpr const char* kTrainSplit = "train";
inline constexpr const char* kEvaluationSplit = "evaluation";

/// Of a split, for random numbers.
inline uint64_t split_key(const std::string& split) { return split == kTrainSplit ? 0 : 1; }
inline constexpr int64_t kLargestSeed = INT64_MAX;

inline constexpr int64_t kMaximumSamples = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaximumImageSize = 4096;  ///< pixels a side

// Numbers of the fields of every data set of classified images.
inline constexpr size_t kImagesField = 0;
inline constexpr size_t kLabelsField = 1;

/// "images" float32 (channels, size, size), of bytes if there is a normalisation, and "labels" int64 ().
inline std::vector<DataField> image_fields(int64_t channels, int64_t size,
                                           std::optional<Normalisation> stored_bytes = {}) {
  return {{"images", {"float32", {channels, size, size}}, std::move(stored_bytes)},
          {"labels", {"int64", {}}}};
}

}  // namespace pipewright
