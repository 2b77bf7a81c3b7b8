// MNIST (LeCun, Cortes, Burges 1998) and Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) in the IDX files they are
// published in.
//
// IDX: a big-endian magic number 0x0000TTDD (TT = 08: unsigned bytes, DD dimensions), DD sizes of 4 bytes,
// the bytes.
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/regular_file.h"
#include "runtime/data/image_sets.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPackageFolder = "/usr/share/datasets/fashion-mnist";  // Debian's dataset-fashion-mnist
constexpr int64_t kIdxSide = 28;
constexpr int64_t kIdxPixels = kIdxSide * kIdxSide;
constexpr int64_t kIdxClasses = 10;

// What the sets that are published in this form differ in.
struct IdxSet {
  const char* name;
  float mean, deviation;  // of all training pixels, scaled to 0..1
  const char* folder;     // where the files are unless root= says; "" = nowhere
  const char* fetch;      // how to come by them
};
constexpr IdxSet kFashionMnist = {"fashion-mnist", 0.2860F, 0.3530F, kPackageFolder,
                                  "apt-get install --reinstall dataset-fashion-mnist"};
constexpr IdxSet kMnist = {"mnist", 0.1307F, 0.3081F, "", "download its four files"};

// An IDX file, gzipped or not (zlib reads both). Errors name the file.
class IdxFile {
 public:
  IdxFile(fs::path file, const IdxSet& set) : file_(std::move(file)), set_(set) {
    try {
      stream_ = gzdopen(::dup(RegularFile(file_).descriptor()), "rb");
    } catch (const InputError& error) {
      const std::string why = std::string(error.what()).substr(file_.string().size() + 2);  // behind the name
      fail(why.starts_with("cannot be read") ? why : "cannot be read: " + why);
    }
    if (!stream_) fail(std::string("cannot be read: ") + std::strerror(errno));
    gzbuffer(stream_, 1 << 18);
  }
  ~IdxFile() { gzclose(stream_); }
  IdxFile(const IdxFile&) = delete;
  IdxFile& operator=(const IdxFile&) = delete;

  [[noreturn]] void fail(const std::string& message) const {
    throw InputError(file_.string() + ": " + message, std::string("a damaged download, or not a file of '") +
                                                          set_.name + "'? fetch it again: " + set_.fetch);
  }

  // The sizes of `dimensions` dimensions of unsigned bytes.
  std::vector<int64_t> header(int dimensions) {
    const uint32_t magic = big_endian(), expected = 0x0800U + static_cast<uint32_t>(dimensions);
    if (magic != expected) {
      fail("magic number: got " + std::to_string(magic) + ", expected " + std::to_string(expected) +
           " (IDX, unsigned bytes, " + std::to_string(dimensions) +
           (dimensions == 1 ? " dimension)" : " dimensions)"));
    }
    std::vector<int64_t> sizes;
    for (int i = 0; i < dimensions; ++i) sizes.push_back(big_endian());
    return sizes;
  }

  std::vector<uint8_t> bytes(int64_t count, int64_t total) {
    // In pieces: a header that lies about its count must not make us ask for the memory.
    constexpr int64_t kPiece = int64_t{1} << 22;
    std::vector<uint8_t> bytes;
    while (static_cast<int64_t>(bytes.size()) < count) {
      const auto had = static_cast<int64_t>(bytes.size()), wanted = std::min(kPiece, count - had);
      bytes.resize(static_cast<size_t>(had + wanted));
      const int64_t got = read(bytes.data() + had, wanted);
      if (got != wanted) {
        fail("got " + std::to_string(had + got) + " bytes of data, expected " + std::to_string(total) +
             " as the header says");
      }
    }
    return bytes;
  }

  // Also makes zlib see the end of the gzip stream, and so its checksum.
  void expect_end(int64_t total) {
    uint8_t more;
    if (read(&more, 1) != 0)
      fail("got more than the " + std::to_string(total) + " bytes of data that the header says");
  }

 private:
  uint32_t big_endian() {
    std::array<uint8_t, 4> b;
    if (read(b.data(), 4) != 4) fail("the file ends within the header of an IDX file");
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
  }

  int64_t read(uint8_t* into, int64_t count) {
    const FileWatch watch(file_);
    const int got = gzread(stream_, into, static_cast<unsigned>(count));
    if (got < count) {
      int code = Z_OK;
      const char* message = gzerror(stream_, &code);
      if (code == Z_BUF_ERROR) fail("the gzip stream is truncated");
      if (code != Z_OK) fail(std::string("cannot be read, or a damaged gzip stream: ") + message);
    }
    return got;
  }

  fs::path file_;
  const IdxSet& set_;
  gzFile stream_ = nullptr;
};

fs::path find_file(const IdxSet& set, const fs::path& root, bool root_given, const std::string& name) {
  const FileWatch watch(root);
  for (const char* suffix : {".gz", ""}) {
    if (const fs::path file = root / (name + suffix); file_exists(file)) return file;
  }
  throw InputError(std::string("data '") + set.name + "': no file " + (root / (name + ".gz")).string() +
                       " (nor without .gz)",
                   root_given ? "root= names the folder that holds the four files " + name + " and so on"
                              : "apt-get install dataset-fashion-mnist, or say where the four files are: "
                                "fashion-mnist:root=DIR");
}

class IdxImages : public Dataset {
 public:
  IdxImages(SpecOptions& options, const std::string& split, const IdxSet& set)
      : image_(options.integer("image", kIdxSide, kIdxSide, kMaximumImageSize)),
        channels_(std::stoll(options.choice("channels", "1", {"1", "3"}))),
        fields_(
            image_fields(channels_, image_,
                         Normalisation{std::vector<float>(static_cast<size_t>(channels_), set.mean),
                                       std::vector<float>(static_cast<size_t>(channels_), set.deviation)})) {
    const bool root_given = options.has("root");
    const fs::path root = options.string("root", set.folder);
    const bool limited = options.has("samples");
    const int64_t limit = options.integer("samples", kMaximumSamples, 1, kMaximumSamples);
    options.finish();

    const std::string prefix = split == kTrainSplit ? "train" : "t10k";
    IdxFile labels(find_file(set, root, root_given, prefix + "-labels-idx1-ubyte"), set);
    IdxFile images(find_file(set, root, root_given, prefix + "-images-idx3-ubyte"), set);
    const int64_t count = labels.header(1)[0];
    const std::vector<int64_t> sizes = images.header(3);
    if (sizes[1] != kIdxSide || sizes[2] != kIdxSide) {
      images.fail("got images of " + std::to_string(sizes[1]) + " x " + std::to_string(sizes[2]) +
                  ", expected 28 x 28");
    }
    if (sizes[0] != count) {
      images.fail("got " + std::to_string(sizes[0]) + " images, expected " + std::to_string(count) +
                  " as in the file of labels");
    }
    if (count < 1 || count > kMaximumSamples) {
      images.fail("got " + std::to_string(count) + " images, expected 1.." + std::to_string(kMaximumSamples));
    }
    if (limited && limit > count) {
      options.fail("samples", "got " + std::to_string(limit) + ", expected 1.." + std::to_string(count) +
                                  ", what the file has");
    }
    // With samples=N the rest of the files is neither read nor checked: that is what makes a quick run quick.
    const int64_t used = limited ? limit : count;
    labels_ = labels.bytes(used, count);
    images_ = images.bytes(used * kIdxPixels, count * kIdxPixels);
    if (used == count) {
      labels.expect_end(count);
      images.expect_end(count * kIdxPixels);
    }
    for (size_t i = 0; i < labels_.size(); ++i) {
      if (labels_[i] >= kIdxClasses) {
        labels.fail("label " + std::to_string(i) + ": got " + std::to_string(labels_[i]) + ", expected 0..9");
      }
    }
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return kIdxClasses; }

  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    if (field == kLabelsField) {
      const int64_t label = labels_[static_cast<size_t>(index)];
      std::memcpy(into, &label, sizeof(label));
      return;
    }
    auto* const out = static_cast<uint8_t*>(into);
    const int64_t border = (image_ - kIdxSide) / 2;  // an odd rest goes to the right and below
    const uint8_t* pixel = images_.data() + index * kIdxPixels;
    if (image_ != kIdxSide) std::fill_n(out, image_ * image_, uint8_t{0});
    for (int64_t y = 0; y < kIdxSide; ++y, pixel += kIdxSide)
      std::copy_n(pixel, kIdxSide, out + (y + border) * image_ + border);
    for (int64_t channel = 1; channel < channels_; ++channel) {
      std::copy_n(out, image_ * image_, out + channel * image_ * image_);
    }
  }

 private:
  int64_t image_, channels_;
  std::vector<DataField> fields_;
  std::vector<uint8_t> images_, labels_;  // 784 bytes a sample
};

}  // namespace

std::unique_ptr<Dataset> open_fashion_mnist(SpecOptions& options, const std::string& split) {
  return std::make_unique<IdxImages>(options, split, kFashionMnist);
}

std::unique_ptr<Dataset> open_mnist_files(SpecOptions& options, const std::string& split) {
  return std::make_unique<IdxImages>(options, split, kMnist);
}

}  // namespace pipewright
