#include "runtime/data/image_tree.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/json.h"
#include "graph/random.h"
#include "graph/units.h"
#include "runtime/data/jpeg_codec.h"
#include "runtime/data/sets.h"
#include "runtime/data/synthetic_images.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSettings = "image-tree.json";
constexpr int64_t kFilesAtOnce = 64;  // of one class, by one thread
constexpr int kQuality = 95;          // of trees that are there, too: they go on with the same bytes

std::string numbered(const std::string& name, int64_t number, int64_t count) {
  const std::string digits = std::to_string(number);
  return name + std::string(std::to_string(count - 1).size() - digits.size(), '0') + digits;
}

Json settings_of(const ImageTree& tree) {
  return {{"data", tree.data},
          {"classes", tree.classes},
          {"image", tree.image},
          {"channels", tree.channels},
          {"train_per_class", tree.train_per_class},
          {"evaluation_per_class", tree.evaluation_per_class},
          {"seed", tree.seed}};
}

// Whether the tree was begun; its folder is there then, and fit for it.
bool was_begun(const fs::path& folder, const ImageTree& tree) {
  const FileWatch watch(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw InputError(folder.string() + ": cannot be made: " + error.message());
  const fs::path file = folder / kSettings;
  if (fs::exists(file)) {
    const Json settings = settings_of(tree);
    const Json begun = parse_json(read_file(file), file.string());
    for (const auto& [key, value] : settings.items()) {
      if (begun.is_object() && begun.contains(key) && begun.at(key) == value) continue;
      const std::string got = begun.is_object() && begun.contains(key) ? begun.at(key).dump() : "nothing";
      throw InputError(
          file.string() + ": this tree was begun with " + key + " " + got + ", not " + value.dump(),
          "Next: the settings it was begun with, or another folder");
    }
    return true;
  }
  if (!fs::is_empty(folder, error))
    throw InputError(folder.string() + ": is not empty, and no tree of images that was begun here",
                     "Next: give a folder that is empty or not there");
  return false;
}

// The two splits of one tree, file by file.
class Files {
 public:
  Files(const ImageTree& tree, fs::path folder)
      : tree_(tree), folder_(std::move(folder)), pictures_(tree.image, tree.channels, 1, tree.seed) {}

  struct Piece {
    bool training;
    int64_t label, first, end;
  };

  std::vector<Piece> pieces() const {
    std::vector<Piece> all;
    for (const bool training : {true, false})
      for (int64_t label = 0; label < tree_.classes; ++label)
        for (int64_t first = 0; first < count(training); first += kFilesAtOnce)
          all.push_back({training, label, first, std::min(count(training), first + kFilesAtOnce)});
    return all;
  }

  fs::path class_folder(bool training, int64_t label) const {
    return folder_ / (training ? "train" : "val") / numbered("class_", label, tree_.classes);
  }

  // Whether it had to be written.
  bool make(bool training, int64_t label, int64_t index) const {
    const std::string name = numbered("img_", index, count(training)) + ".JPEG";
    const fs::path folder = class_folder(training, label), file = folder / name;
    const FileWatch watch(file);
    std::error_code error;
    // An empty file is what a power cut leaves of one that was just renamed.
    if (const auto bytes = fs::file_size(file, error); !error && bytes > 0) return false;
    // A name that begins with a dot is no image to a reader.
    const fs::path beside = folder / ("." + name);
    const std::string bytes = encoded(training, label, index);
    std::ofstream out(beside, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) throw RunError(beside.string() + ": cannot be written: is the disk full?");
    fs::rename(beside, file, error);
    if (error) throw RunError(file.string() + ": cannot be written: " + error.message());
    return true;
  }

  std::string encoded(bool training, int64_t label, int64_t index) const {
    constexpr uint64_t kPurpose = 0x54524545;  // keeps this stream apart from those of synthetic_images.cc
    KeyedRandom random{kPurpose, tree_.seed, split_key(training ? kTrainSplit : kEvaluationSplit),
                       static_cast<uint64_t>(label), static_cast<uint64_t>(index)};
    const auto side = static_cast<int>(tree_.image), channels = static_cast<int>(tree_.channels);
    std::vector<float> values(static_cast<size_t>(side * side * channels));
    pictures_.draw(label, random, values.data());
    Pixels image(side, side, channels);
    const float* value = values.data();
    for (int channel = 0; channel < channels; ++channel) {
      for (int y = 0; y < side; ++y) {
        uint8_t* pixel = image.row(y) + channel;
        for (int x = 0; x < side; ++x, pixel += channels)
          *pixel = static_cast<uint8_t>(std::clamp(std::lround(128 + 40 * *value++), 0L, 255L));
      }
    }
    return encode_jpeg(image, kQuality);
  }

 private:
  int64_t count(bool training) const { return training ? tree_.train_per_class : tree_.evaluation_per_class; }

  const ImageTree& tree_;
  fs::path folder_;
  SyntheticPictures pictures_;
};

// Before hours of work, not after.
void check_room(const Files& files, const ImageTree& tree, const fs::path& folder) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error) return;
  constexpr double kBlock = 4096;  // what a file system gives a file at least
  const double file = kBlock * std::ceil(static_cast<double>(files.encoded(true, 0, 0).size()) / kBlock);
  const double needed = file * static_cast<double>(tree.files());
  if (needed < static_cast<double>(space.available)) return;
  throw InputError(folder.string() + ": got " + format_bytes(static_cast<double>(space.available)) +
                       " of free disk, expected about " + format_bytes(needed) + " for " +
                       std::to_string(tree.files()) + " images",
                   "Next: another disk, or fewer images of each class");
}

}  // namespace

TreeProgress write_image_tree(const ImageTree& tree, const fs::path& folder, int64_t threads,
                              const std::function<void(const TreeProgress&)>& progress) {
  PW_CHECK(threads >= 1, "threads " << threads);
  const bool begun = was_begun(folder, tree);
  const Files files(tree, folder);
  if (!begun) {
    check_room(files, tree, folder);
    write_file(folder / kSettings, json_text(settings_of(tree)));
  }
  const std::vector<Files::Piece> pieces = files.pieces();
  for (const Files::Piece& piece : pieces)
    if (piece.first == 0) {
      std::error_code error;
      fs::create_directories(files.class_folder(piece.training, piece.label), error);
      if (error)
        throw RunError(files.class_folder(piece.training, piece.label).string() +
                       ": cannot be made: " + error.message());
    }

  std::atomic<size_t> next = 0;
  std::atomic<int64_t> done = 0, written = 0;
  std::mutex mutex;
  std::condition_variable ended;
  int64_t working = threads;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (size_t i; (i = next++) < pieces.size();) {
        const Files::Piece& piece = pieces[i];
        for (int64_t index = piece.first; index < piece.end; ++index) {
          if (files.make(piece.training, piece.label, index)) ++written;
          ++done;
        }
      }
    } catch (...) {
      next = pieces.size();  // the others stop, too
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    --working;
    ended.notify_one();
  };
  const auto now = [&] { return TreeProgress{done, written, tree.files()}; };
  std::vector<std::jthread> workers;
  for (int64_t i = 0; i < threads; ++i) workers.emplace_back(work);
  {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, std::chrono::milliseconds(250), [&] { return working == 0; }))
      if (progress) progress(now());
  }
  if (error) std::rethrow_exception(error);
  if (progress) progress(now());
  return now();
}

}  // namespace pipewright
