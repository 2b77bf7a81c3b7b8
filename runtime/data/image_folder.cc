// Folders of JPEG and PNG files, one folder a class.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <opencv2/imgproc.hpp>
#include <set>
#include <utility>

#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/nearest.h"
#include "graph/random.h"
#include "graph/regular_file.h"
#include "runtime/data/image_decode.h"
#include "runtime/data/image_file.h"
#include "runtime/data/image_sets.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamedInRemarks = 5;
constexpr int64_t kMaximumFileBytes = int64_t{1} << 30;  // no photograph is larger
constexpr int64_t kUsualPixels = 128'000'000;            // more than cameras make; 384 MB while it is decoded
constexpr int64_t kMostPixels = int64_t{1} << 30;

// "3 files ...: a, b, c" with the first few names.
std::string remark(const std::string& what, const std::vector<std::string>& names) {
  std::string text = std::to_string(names.size()) + " " + what + ": ";
  for (size_t i = 0; i < names.size() && i < kNamedInRemarks; ++i) text += (i ? ", " : "") + names[i];
  return text + (names.size() > kNamedInRemarks ? ", ..." : "");
}

std::vector<fs::path> sorted_entries(const std::string& set, const fs::path& folder) {
  FileWatch watch(folder);
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    watch.advance();
    if (it->path().filename().string()[0] != '.') entries.push_back(it->path());
  }
  if (error) throw InputError(set + folder.string() + " cannot be listed: " + error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool has_image_suffix(const fs::path& path) {
  std::string suffix = path.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png";
}

// Where the two splits lie: root/train and root/evaluation (or root/val), or both in root itself.
struct Splits {
  fs::path train, evaluation;
};

Splits find_splits(const SpecOptions& options, const fs::path& root) {
  if (!is_folder(root)) {
    options.fail("root", "got " + root.string() + ", expected a folder",
                 "root= names the folder that holds one folder a class, or train/ and evaluation/ (or val/)");
  }
  const fs::path train = root / "train";
  const fs::path evaluation = is_folder(root / "evaluation") ? root / "evaluation" : root / "val";
  if (!is_folder(train) && !is_folder(evaluation)) return {root, root};
  if (!is_folder(train)) {
    options.fail("root", root.string() + " has " + evaluation.filename().string() + "/ but no train/");
  }
  if (!is_folder(evaluation)) {
    options.fail(
        "root", root.string() + " has train/ but neither evaluation/ nor val/",
        "if 'train' is a class of its own, rename it; to evaluate on the training images give root=" +
            train.string());
  }
  return {train, evaluation};
}

std::vector<std::string> class_names(const std::string& set, const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& entry : sorted_entries(set, folder)) {
    if (is_folder(entry)) names.push_back(entry.filename().string());
  }
  if (names.empty()) {
    throw InputError(
        set + folder.string() + " has no class folders; expected one folder a class",
        "layout: ROOT/CLASS/IMAGE.jpg, or ROOT/train/CLASS/IMAGE.jpg and ROOT/evaluation/CLASS/IMAGE.jpg");
  }
  return names;
}

// ---- pixels ----

// What becomes of an image: a piece of it is made `side` x `side`, lies there moved, black where nothing is
// left, and mirrored.
struct Preparation {
  Rectangle piece;
  int right = 0, down = 0;
  bool mirrored = false;
};

// What stays of the image when its shorter side is made `shorter` and then a centred square of `side` is cut
// out; so that an image of one by a million pixels costs nothing.
Rectangle centre_piece(const ImageSize& image, int side, int shorter) {
  const int edge = std::min(image.width, image.height);
  const int kept = std::max(1, static_cast<int>(std::lround(static_cast<double>(edge) * side / shorter)));
  return {(image.width - kept) / 2, (image.height - kept) / 2, kept, kept};
}

int below(KeyedRandom& random, int bound) {
  return static_cast<int>(random.below(static_cast<uint64_t>(bound)));
}

// A piece of 8 % to 100 % of the area, 3:4 to 4:3, to be made square: "Going deeper with convolutions"
// (Szegedy et al. 2015).
Rectangle random_piece(const ImageSize& image, int side, KeyedRandom& random) {
  const double area = static_cast<double>(image.width) * image.height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double part = area * (0.08 + 0.92 * random.uniform());
    const double ratio = std::exp((2 * random.uniform() - 1) * std::log(4.0 / 3));
    const int width = static_cast<int>(std::lround(std::sqrt(part * ratio)));
    const int height = static_cast<int>(std::lround(std::sqrt(part / ratio)));
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    const int x = below(random, image.width - width + 1), y = below(random, image.height - height + 1);
    return {x, y, width, height};
  }
  return centre_piece(image, side, side);  // a very long or high image
}

Pixels resized(Pixels image, int side) {
  if (image.width() == side && image.height() == side) return image;
  const auto mat = [](Pixels& of) {
    return cv::Mat(of.height(), of.width(), CV_8UC(of.channels()), of.row(0));
  };
  // Averages where pixels get fewer: without it, thin lines vanish or stay by chance.
  const bool fewer = side < image.width() || side < image.height();
  Pixels result(side, side, image.channels());
  const cv::Mat from = mat(image);
  cv::Mat into = mat(result);
  cv::resize(from, into, into.size(), 0, 0, fewer ? cv::INTER_AREA : cv::INTER_LINEAR);
  return result;
}

// Columns or rows of the square that are of the image, as it lies moved by `by`.
struct Kept {
  int begin, end;
  Kept(int side, int by) : begin(std::clamp(by, 0, side)), end(std::clamp(side + by, 0, side)) {}
};

// (channels, side, side), from a square image that is moved and mirrored.
void write_planes(Pixels image, const Preparation& how, uint8_t* into) {
  const int side = image.width(), channels = image.channels();
  const Kept columns(side, how.right), rows(side, how.down);
  const cv::Rect kept(columns.begin, rows.begin, columns.end - columns.begin, rows.end - rows.begin);
  std::vector<cv::Mat> planes, pieces;
  for (int channel = 0; channel < channels; ++channel, into += side * side) {
    planes.emplace_back(side, side, CV_8U, into);
    if (kept.area() < side * side) planes.back().setTo(0);  // black
    pieces.push_back(planes.back()(kept));
  }
  const cv::Mat pixels(side, side, CV_8UC(channels), image.row(0));
  cv::split(pixels(kept - cv::Point(how.right, how.down)), pieces.data());
  if (!how.mirrored) return;
  for (cv::Mat& plane : planes) cv::flip(plane, plane, 1);
}

// ---- the data set ----

class ImageFolder : public Dataset {
 public:
  ImageFolder(SpecOptions& options, const std::string& split, const ImageFolderStyle& style)
      : name_("data '" + options.spec().name + "': "),
        image_(static_cast<int>(options.integer("image", style.image, 1, kMaximumImageSize))),
        channels_(std::stoi(options.choice("channels", std::to_string(style.channels), {"1", "3"}))),
        resize_(static_cast<int>(options.integer("resize", style.border ? (image_ * 8 + 3) / 7 : image_,
                                                 image_, 4 * kMaximumImageSize))),
        crop_(options.choice("crop", style.crop, {"resized", "padded", "centre"})),
        flip_(options.choice("flip", style.flip ? "yes" : "no", {"yes", "no"}) == "yes"),
        skip_(options.choice("corrupt", "fail", {"fail", "skip"}) == "skip"),
        most_pixels_(options.integer("max_pixels", kUsualPixels, 1, kMostPixels)),
        training_(split == kTrainSplit),
        fields_(image_fields(channels_, image_, style.normalisation.of(channels_))) {
    const bool root_given = options.has("root");
    const fs::path root = options.string("root", "");
    options.finish();
    if (!root_given) options.fail("root", "it is missing; expected root=DIR");
    // The loader's workers are our threads; OpenCV's own would only fight with them for the cores.
    cv::setNumThreads(0);

    const Splits splits = find_splits(options, root);
    classes_ = class_names(name_, splits.train);
    list_files(training_ ? splits.train : splits.evaluation);
  }

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return static_cast<int64_t>(classes_.size()); }

  std::string augmentation() const override {
    if (!training_ || (crop_ == "centre" && !flip_)) return "";
    return "random crops and flips (crop=centre, flip=no)";
  }

  void read(int64_t index, size_t field, SampleKey key, void* into) const override {
    const int64_t label = label_of(index);
    if (field == kLabelsField) {
      std::memcpy(into, &label, sizeof(label));
      return;
    }
    Preparation how;
    Pixels image = load_or_replace(index, label, key, &how);
    write_planes(std::move(image), how, static_cast<uint8_t*>(into));
  }

  std::vector<std::string> remarks() const override {
    std::vector<std::string> all = remarks_;
    const std::lock_guard lock(mutex_);
    if (!corrupt_.empty()) {
      all.push_back(remark(corrupt_.size() == 1 ? "corrupt image replaced" : "corrupt images replaced",
                           {corrupt_.begin(), corrupt_.end()}));
    }
    return all;
  }

 private:
  void list_files(const fs::path& folder) {
    std::vector<std::string> ignored;
    std::vector<std::string> absent = classes_;
    for (const fs::path& entry : sorted_entries(name_, folder)) {
      if (!is_folder(entry)) {
        ignored.push_back(entry.string());
        continue;
      }
      const std::string name = entry.filename().string();
      const auto found = std::find(classes_.begin(), classes_.end(), name);
      if (found == classes_.end()) {
        throw InputError(name_ + entry.string() + " is not a class of the training images" +
                         suggestion(name, classes_));
      }
      absent.erase(std::find(absent.begin(), absent.end(), name));
      const size_t before = files_.size();
      for (const fs::path& file : sorted_entries(name_, entry)) {
        if (!is_folder(file) && has_image_suffix(file)) {
          files_.push_back(file);
        } else {
          ignored.push_back(file.string());
        }
      }
      if (files_.size() == before) {
        throw InputError(name_ + "class folder " + entry.string() + " holds no .jpg, .jpeg or .png file",
                         "remove the folder, or put images directly into it");
      }
      spans_.push_back({before, files_.size(), found - classes_.begin()});
    }
    if (files_.empty()) throw InputError(name_ + folder.string() + " has no class folders");
    if (static_cast<int64_t>(files_.size()) > kMaximumSamples) {
      throw InputError(name_ + folder.string() + " holds " + std::to_string(files_.size()) +
                       " images, expected at most " + std::to_string(kMaximumSamples));
    }
    if (!ignored.empty()) {
      remarks_.push_back(remark(ignored.size() == 1
                                    ? "entry ignored (not .jpg, .jpeg or .png in a class folder)"
                                    : "entries ignored (not .jpg, .jpeg or .png in a class folder)",
                                ignored));
    }
    if (!absent.empty())
      remarks_.push_back(remark("training classes without a folder in " + folder.string(), absent));
  }

  // The files of one class: [first, end) of files_.
  struct Span {
    size_t first, end;
    int64_t label;
  };

  const Span& span_of(int64_t index) const {
    const auto after = std::upper_bound(spans_.begin(), spans_.end(), static_cast<size_t>(index),
                                        [](size_t i, const Span& span) { return i < span.first; });
    return *(after - 1);
  }
  int64_t label_of(int64_t index) const { return span_of(index).label; }

  // The image of sample `index`; with corrupt=skip, where it cannot be decoded, that of the next file of its
  // class (the first after the last) that can. Of the same class, so that the label is known without opening
  // the image.
  Pixels load_or_replace(int64_t index, int64_t label, SampleKey key, Preparation* how) const {
    const Span& span = span_of(index);
    const size_t count = span.end - span.first;
    for (size_t step = 0; step < count; ++step) {
      const size_t at = span.first + (static_cast<size_t>(index) - span.first + step) % count;
      Pixels image;
      const std::string problem = load(files_[at], index, key, how, &image);
      if (problem.empty()) return image;
      if (!skip_) {
        throw RunError(files_[at].string() + ": " + problem,
                       "a damaged file? remove or replace it, or give the data set the option corrupt=skip");
      }
      const std::lock_guard lock(mutex_);
      corrupt_.insert(files_[at].string());
    }
    throw RunError(name_ + "class '" + classes_[static_cast<size_t>(label)] + "': none of its " +
                       std::to_string(count) + " images can be decoded, the first is " +
                       files_[span.first].string(),
                   "remove the class's folder or replace its images");
  }

  // The prepared square, and how it lies in the sample. "" or what is wrong with the file.
  std::string load(const fs::path& file, int64_t index, SampleKey key, Preparation* how,
                   Pixels* image) const {
    std::string bytes;
    try {
      const RegularFile opened(file);
      if (opened.bytes() > kMaximumFileBytes) return "larger than 1 GiB";
      bytes.resize(static_cast<size_t>(opened.bytes()));
      opened.read(0, bytes.data(), opened.bytes());
    } catch (const Error& error) {
      return error.what();
    }
    if (const std::string problem = incomplete_image(bytes); !problem.empty()) return problem;
    const std::optional<ImageHeader> header = image_header(bytes);
    if (!header) return "cannot be decoded: it does not say how large it is";
    const int64_t pixels = header->width * header->height;
    if (pixels > most_pixels_) {
      return "has " + std::to_string(pixels) +
             " pixels, more than max_pixels=" + std::to_string(most_pixels_);
    }
    *how = preparation(size_of(*header), index, key);
    Pixels piece;
    const std::string problem = decode_image(bytes, *header, how->piece, image_, channels_, &piece);
    if (!problem.empty()) return "cannot be decoded: " + problem;
    *image = resized(std::move(piece), image_);
    return "";
  }

  Preparation preparation(const ImageSize& size, int64_t index, SampleKey key) const {
    if (!training_) return {centre_piece(size, image_, resize_)};
    constexpr uint64_t kPurpose = 0x43524f50;  // keeps this stream apart from the sampler's
    KeyedRandom random{kPurpose, key.seed, static_cast<uint64_t>(key.epoch), static_cast<uint64_t>(index)};
    Preparation how;
    if (crop_ == "resized") {
      how.piece = random_piece(size, image_, random);
    } else if (crop_ == "padded") {  // what is usual for small images
      how.piece = centre_piece(size, image_, image_);
      const int most = image_ / 8;
      how.right = most - below(random, 2 * most + 1);
      how.down = most - below(random, 2 * most + 1);
    } else {
      how.piece = centre_piece(size, image_, resize_);
    }
    how.mirrored = flip_ && random.below(2) == 1;
    return how;
  }

  std::string name_;  // begins messages
  int image_, channels_, resize_;
  std::string crop_;
  bool flip_;
  bool skip_;
  int64_t most_pixels_;
  bool training_;
  std::vector<DataField> fields_;
  std::vector<std::string> classes_;  // sorted; the position is the label
  std::vector<fs::path> files_;       // by class, then by name
  std::vector<Span> spans_;           // of the classes that have files, ascending
  std::vector<std::string> remarks_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> corrupt_;
};

}  // namespace

bool is_folder(const fs::path& path) {
  const FileWatch watch(path);
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::unique_ptr<Dataset> open_image_folder(SpecOptions& options, const std::string& split) {
  return open_image_folder(options, split, ImageFolderStyle{});
}

std::unique_ptr<Dataset> open_image_folder(SpecOptions& options, const std::string& split,
                                           const ImageFolderStyle& style) {
  return std::make_unique<ImageFolder>(options, split, style);
}

}  // namespace pipewright
