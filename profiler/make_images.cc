// pipewright-profiler make-images: a tree of synthetic image files in place of a published data set.
#include <boost/program_options.hpp>
#include <chrono>
#include <iostream>
#include <thread>

#include "graph/command_line.h"
#include "graph/error.h"
#include "graph/nearest.h"
#include "profiler/commands.h"
#include "profiler/graph_listing.h"
#include "profiler/progress_line.h"
#include "runtime/data/image_sets.h"
#include "runtime/data/image_tree.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

const NamedImageSet& set_named(const std::string& name) {
  std::vector<std::string> names;
  for (const NamedImageSet& set : named_image_sets()) {
    if (set.name == name) return set;
    names.emplace_back(set.name);
  }
  throw InputError("--data: unknown data set '" + name + "'" + suggestion(name, names));
}

int64_t limited(const po::variables_map& options, const std::string& name, int64_t fallback, int64_t minimum,
                int64_t maximum) {
  if (!options.count(name)) return fallback;
  const auto value = options[name].as<int64_t>();
  if (value < minimum || value > maximum)
    throw InputError("--" + name + ": " + std::to_string(value) + " is not in " + std::to_string(minimum) +
                     ".." + std::to_string(maximum));
  return value;
}

ImageTree tree_of(const po::variables_map& options) {
  if (!options.count("data"))
    throw InputError("option --data is missing",
                     "Likely: --data cifar10; mnist, imagenet and highres are others");
  const NamedImageSet& set = set_named(options["data"].as<std::string>());
  ImageTree tree;
  tree.data = set.name;
  tree.classes = limited(options, "classes", set.classes, 2, set.classes);
  tree.image = limited(options, "image", set.style.image, 1, kMaximumImageSize);
  tree.channels = set.style.channels;
  const int64_t most = limited(options, "per-class", set.train_per_class(), 1, set.train_per_class());
  tree.train_per_class = most;
  tree.evaluation_per_class = std::min(most, set.evaluation_per_class());
  tree.seed = static_cast<uint64_t>(limited(options, "seed", 0, 0, kLargestSeed));
  return tree;
}

}  // namespace

void make_images_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()  //
      ("data", po::value<std::string>()->value_name("NAME"),
       "the set to stand in for: mnist, cifar10, imagenet or highres")  //
      ("output", po::value<std::string>()->value_name("DIR"),
       "folder of the tree; what is there of it is kept")  //
      ("per-class", po::value<int64_t>()->value_name("N"),
       "at most N images of a class in each split; default: as many as the set has")                 //
      ("classes", po::value<int64_t>()->value_name("N"), "only the first N classes; default: all")   //
      ("image", po::value<int64_t>()->value_name("PIXELS"), "side of an image; default: the set's")  //
      ("seed", po::value<int64_t>()->value_name("N"), "what the images are drawn from; default: 0")  //
      ("threads", po::value<int64_t>()->value_name("N"), "threads that write; default: one for each core");
  const auto options = parse_options(
      arguments, description,
      "pipewright-profiler make-images: writes DIR/train/class_K/img_I.JPEG and DIR/val/class_K/img_I.JPEG, "
      "synthetic\n"
      "images that a model can learn, of the sizes and numbers of a published set. Run again it goes on.\n"
      "Example: pipewright-profiler make-images --data cifar10 --output runs/cifar10");
  const ImageTree tree = tree_of(options);
  if (!options.count("output"))
    throw InputError("option --output is missing", "Likely: --output runs/" + tree.data);
  const std::string folder = options["output"].as<std::string>();
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t threads = limited(options, "threads", cores, 1, 1024);

  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  TreeProgress end;
  {
    ProgressLine line;
    end = write_image_tree(tree, folder, threads, [&](const TreeProgress& at) {
      const auto left = static_cast<double>(at.total - at.done), written = static_cast<double>(at.written);
      if (at.written > 0)
        line.show(with_thousands(at.done) + " of " + with_thousands(at.total) + " images",
                  static_cast<double>(at.done) / static_cast<double>(at.total), left * seconds() / written);
    });
  }
  const std::string side = std::to_string(tree.image);
  std::cout << folder << ": " << with_thousands(tree.classes * tree.train_per_class) << " training and "
            << with_thousands(tree.classes * tree.evaluation_per_class) << " evaluation images of " << side
            << " x " << side << " in " << with_thousands(tree.classes) << " classes\n";
  char speed[64];
  std::snprintf(speed, sizeof speed, " in %.1f s (%.0f a second)", seconds(),
                static_cast<double>(end.written) / seconds());
  std::cout << with_thousands(end.written) << " written" << (end.written ? speed : "") << ", "
            << with_thousands(end.total - end.written) << " were there\n"
            << "use them: --data " << tree.data << ":root=" << folder << "\n";
}

}  // namespace pipewright
