// CIFAR-10 (Krizhevsky 2009) in its binary form: data_batch_1.bin to data_batch_5.bin and test_batch.bin,
// records of a label and 32 x 32 bytes of red, of green and of blue.
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/random.h"
#include "graph/regular_file.h"
#include "runtime/data/image_sets.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCifarSide = 32, kCifarPixels = kCifarSide * kCifarSide, kChannels = 3;
constexpr int64_t kRecord = 1 + kChannels * kCifarPixels;
constexpr int64_t kCifarClasses = 10;
constexpr int64_t kBorder = 4;  // of black around a training image, from which 32 x 32 are cut

fs::path file_in(const fs::path& root, const std::string& name) {
  // The archive unpacks into a folder of its own.
  const FileWatch watch(root);
  for (const fs::path& file : {root / name, root / "cifar-10-batches-bin" / name})
    if (file_exists(file)) return file;
  throw InputError(
      "data 'cifar10': no file " + (root / name).string(),
      "root= names the folder that cifar-10-binary.tar.gz was unpacked in, or one with train/CLASS/*.png and "
      "evaluation/CLASS/*.png; cifar10:synthetic=yes needs no files");
}

// One of the files. Pixels stay in it: they are read when they are asked for.
class Batch {
 public:
  explicit Batch(fs::path path) : path_(std::move(path)), file_(path_) {
    if (file_.bytes() == 0 || file_.bytes() % kRecord != 0)
      fail("got " + std::to_string(file_.bytes()) + " bytes, expected a multiple of " +
           std::to_string(kRecord) + ": records of a label and 3 x 32 x 32 pixels");
  }

  int64_t size() const { return file_.bytes() / kRecord; }

  void append_labels(int64_t count, std::vector<uint8_t>& labels) const {
    constexpr int64_t kRecords = 1024;
    std::vector<uint8_t> bytes;
    for (int64_t first = 0; first < count; first += kRecords) {
      const int64_t records = std::min(kRecords, count - first);
      bytes.resize(static_cast<size_t>(records * kRecord));
      file_.read(first * kRecord, bytes.data(), records * kRecord);
      for (int64_t i = 0; i < records; ++i) {
        const uint8_t label = bytes[static_cast<size_t>(i * kRecord)];
        if (label >= kCifarClasses)
          fail("record " + std::to_string(first + i) + ": label: got " + std::to_string(label) +
               ", expected 0..9");
        labels.push_back(label);
      }
    }
  }

  using Pixels = std::array<uint8_t, kChannels * kCifarPixels>;
  void read(int64_t record, Pixels& pixels) const {
    file_.read(record * kRecord + 1, pixels.data(), static_cast<int64_t>(pixels.size()));
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw InputError(
        path_.string() + ": " + message,
        "a damaged download, or not the binary form of CIFAR-10? fetch cifar-10-binary.tar.gz again");
  }

  fs::path path_;
  RegularFile file_;
};

class Cifar10 : public Dataset {
 public:
  Cifar10(SpecOptions& options, const std::string& split)
      : training_(split == kTrainSplit),
        fields_(image_fields(kChannels, kCifarSide, kCifar10Normalisation.colour)) {
    const fs::path root = options.string("root", "");
    const bool limited = options.has("samples");
    const int64_t limit = options.integer("samples", kMaximumSamples, 1, kMaximumSamples);
    options.finish();

    std::vector<std::string> names = {"test_batch.bin"};
    if (training_) {
      names.clear();
      for (int i = 1; i <= 5; ++i) names.push_back("data_batch_" + std::to_string(i) + ".bin");
    }
    int64_t all = 0;
    for (const std::string& name : names) {
      const Batch& batch = batches_.emplace_back(file_in(root, name));
      all += batch.size();
      if (const int64_t missing = limit - size(); missing > 0)
        batch.append_labels(std::min(missing, batch.size()), labels_);
      ends_.push_back(all);
    }
    if (limited && limit > all)
      options.fail("samples", "got " + std::to_string(limit) + ", expected 1.." + std::to_string(all) +
                                  ", what the files have");
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return kCifarClasses; }
  std::string augmentation() const override { return training_ ? "random crops and flips" : ""; }

  void read(int64_t index, size_t field, SampleKey key, void* into) const override {
    if (field == kLabelsField) {
      const int64_t label = labels_[static_cast<size_t>(index)];
      std::memcpy(into, &label, sizeof(label));
      return;
    }
    const auto batch =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    Batch::Pixels pixels;
    batches_[batch].read(index - (batch == 0 ? 0 : ends_[batch - 1]), pixels);
    write(pixels, training_ ? drawn_view(index, key) : View{}, static_cast<uint8_t*>(into));
  }

 private:
  // Where the image is looked at: moved by `right` and `down`, black beyond its edges, perhaps mirrored.
  struct View {
    int64_t right = 0, down = 0;
    bool mirrored = false;
  };

  static View drawn_view(int64_t index, SampleKey key) {
    constexpr uint64_t kPurpose = 0x4349464152;  // keeps this stream apart from the sampler's
    KeyedRandom random{kPurpose, key.seed, static_cast<uint64_t>(key.epoch), static_cast<uint64_t>(index)};
    const auto shift = [&] { return static_cast<int64_t>(random.below(2 * kBorder + 1)) - kBorder; };
    View view;
    view.right = shift();
    view.down = shift();
    view.mirrored = random.below(2) == 1;
    return view;
  }

  static void write(const Batch::Pixels& pixels, const View& view, uint8_t* into) {
    const int64_t left = std::max<int64_t>(0, -view.right), kept = kCifarSide - std::abs(view.right);
    std::memset(into, 0, pixels.size());
    for (int64_t channel = 0; channel < kChannels; ++channel) {
      for (int64_t y = 0; y < kCifarSide; ++y, into += kCifarSide) {
        const int64_t row = y + view.down;
        if (row < 0 || row >= kCifarSide) continue;
        const uint8_t* const first =
            pixels.data() + channel * kCifarPixels + row * kCifarSide + std::max<int64_t>(0, view.right);
        std::copy_n(first, kept, into + left);
        if (view.mirrored) std::reverse(into, into + kCifarSide);
      }
    }
  }

  bool training_;
  std::vector<DataField> fields_;
  std::vector<Batch> batches_;
  std::vector<int64_t> ends_;    // of each batch, in samples
  std::vector<uint8_t> labels_;  // of all samples that are used
};

}  // namespace

std::unique_ptr<Dataset> open_cifar10_files(SpecOptions& options, const std::string& split) {
  return std::make_unique<Cifar10>(options, split);
}

}  // namespace pipewright
