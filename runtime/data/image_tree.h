// Synthetic images as a tree of JPEG files, in the layout that image-folder reads:
//   FOLDER/train/class_K/img_I.JPEG  and  FOLDER/val/class_K/img_I.JPEG
// Numbers have leading zeros, so that the class in the name is the label.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace pipewright {

struct ImageTree {
  std::string data;  ///< the set it stands for, "cifar10"
  int64_t classes;
  int64_t image;  ///< pixels a side
  int64_t channels;
  int64_t train_per_class, evaluation_per_class;
  uint64_t seed = 0;

  int64_t files() const { return classes * (train_per_class + evaluation_per_class); }
};

struct TreeProgress {
  int64_t done;     ///< files that are there
  int64_t written;  ///< of them by this call
  int64_t total;
};

/// Writes what is missing of the tree with `threads` threads; each file appears whole, and is a function of
/// the tree's settings and its own place alone. Calls `progress` a few times a second, from the calling
/// thread, and at the end. FOLDER/image-tree.json keeps the settings. InputError: the folder holds something
/// else or a tree with other settings, or its disk has less room than the files will need. RunError: a file
/// cannot be written.
TreeProgress write_image_tree(const ImageTree& tree, const std::filesystem::path& folder, int64_t threads,
                              const std::function<void(const TreeProgress&)>& progress = {});

}  // namespace pipewright
