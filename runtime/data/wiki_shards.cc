// What BERT is trained with, made beforehand: HDF5 files ("shards") as NVIDIA's and SDPipe's scripts write
// and read them, pairs of texts with masked tokens, and whether the second follows the first.
#include <algorithm>
#include <deque>
#include <filesystem>
#include <mutex>

#include "graph/error.h"
#include "runtime/data/encoded_text.h"
#include "runtime/data/hdf5_file.h"
#include "runtime/data/sequences.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

constexpr size_t kLabels = kEncodedFields, kNextSentence = kEncodedFields + 1;
constexpr const char* kEncoded[] = {"input_ids", "input_mask", "segment_ids"};  // by field
constexpr const char* kPositions = "masked_lm_positions";
constexpr const char* kWords = "masked_lm_ids";
constexpr const char* kNext = "next_sentence_labels";

// Each open one keeps some MiB of its tables in memory.
constexpr size_t kMostOpen = 16;

std::mutex& library() {
  static std::mutex mutex;
  return mutex;
}

struct Shard {
  std::filesystem::path file;
  int64_t first;  // of its samples, in the split
  std::unique_ptr<Hdf5File> open = nullptr;
};

std::vector<std::filesystem::path> files_of(const std::filesystem::path& root, const std::string& split) {
  std::error_code error;
  std::vector<std::filesystem::path> all, evaluation, train;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    const auto& file = entry.path();
    if (file.extension() != ".hdf5" && file.extension() != ".h5") continue;
    all.push_back(file);
    (file.filename().string().find("_test_") != std::string::npos ? evaluation : train).push_back(file);
  }
  if (error) throw InputError(root.string() + ": " + error.message());
  if (all.empty()) throw InputError(root.string() + ": holds no file *.hdf5 or *.h5");
  auto& chosen = evaluation.empty() || train.empty() ? all : split == kTrainSplit ? train : evaluation;
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

class WikiShards : public EncodedDataset {
 public:
  WikiShards(SpecOptions& options, const std::string& split)
      : vocabulary_(options.integer("vocabulary", 30522, 2, int64_t{1} << 31)) {
    const std::string root = options.string("root", "");
    options.finish();
    if (root.empty()) options.fail("root", "it is missing; expected root=DIR, a folder of *.hdf5");
    const std::lock_guard lock(library());
    for (const auto& file : files_of(root, split)) add(file);
    if (size_ < 1 || size_ > kMaximumSamples) {
      throw InputError(root + ": its shards hold " + std::to_string(size_) + " samples, expected 1.." +
                       std::to_string(kMaximumSamples));
    }
    fields_ = encoded_fields(tokens_);
    fields_.push_back({"labels", {"int64", {tokens_}}});
    fields_.push_back({"next_sentence_labels", {"int64", {}}});
  }

  int64_t size() const override { return size_; }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return vocabulary_; }
  int64_t vocabulary() const override { return vocabulary_; }

  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    auto* const out = static_cast<int64_t*>(into);
    const std::lock_guard lock(library());
    const auto behind =
        std::upper_bound(shards_.begin(), shards_.end(), index,
                         [](int64_t sample, const Shard& shard) { return sample < shard.first; });
    Shard& shard = *std::prev(behind);
    open(shard);
    const int64_t row = index - shard.first;
    if (field < kEncodedFields) {
      read_row(shard, kEncoded[field], row, field == kEncodedTokens ? vocabulary_ : 2,
               {out, static_cast<size_t>(tokens_)});
    } else if (field == kLabels) {
      read_labels(shard, row, out);
    } else {
      read_row(shard, kNext, row, 2, {out, 1});
    }
  }

 private:
  void add(const std::filesystem::path& file) {
    Hdf5File shard(file);
    const Hdf5File::Shape texts = shard.shape(kEncoded[kEncodedTokens]);
    const Hdf5File::Shape words = shard.shape(kPositions);
    const auto expect = [&](const char* table, const Hdf5File::Shape& expected) {
      const auto text = [](const Hdf5File::Shape& shape) {
        return std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
      };
      const Hdf5File::Shape got = shard.shape(table);
      if (got == expected) return;
      throw InputError(file.string() + ": table '" + table + "': got " + text(got) + ", expected " +
                       text(expected));
    };
    if (shards_.empty()) {
      tokens_ = texts.columns;
      masked_ = words.columns;
    }
    for (const char* table : kEncoded) expect(table, {texts.rows, tokens_});
    for (const char* table : {kPositions, kWords}) expect(table, {texts.rows, masked_});
    expect(kNext, {texts.rows, 1});
    if (texts.rows == 0) return;
    shards_.push_back({file, size_});
    size_ += texts.rows;
  }

  // The last ones that were read stay open.
  void open(Shard& shard) const {
    if (shard.open) return;
    if (open_.size() == kMostOpen) {
      open_.front()->open.reset();
      open_.pop_front();
    }
    shard.open = std::make_unique<Hdf5File>(shard.file);
    open_.push_back(&shard);
  }

  void read_row(Shard& shard, const char* table, int64_t row, int64_t behind, std::span<int64_t> into) const {
    shard.open->read_row(table, row, into.data());
    for (const int64_t number : into) {
      if (0 <= number && number < behind) continue;
      throw RunError(shard.file.string() + ": row " + std::to_string(row) + " of '" + table + "': got " +
                         std::to_string(number) + ", expected 0.." + std::to_string(behind - 1),
                     behind == vocabulary_ ? "Was it made with another vocabulary? --data wiki-shards:"
                                             "vocabulary=N says how many tokens there are."
                                           : "");
    }
  }

  // Place 0 is [CLS], which nobody masks: from there on the row is filled up.
  void read_labels(Shard& shard, int64_t row, int64_t* into) const {
    std::vector<int64_t> places(static_cast<size_t>(masked_)), words(places.size());
    read_row(shard, kPositions, row, tokens_, places);
    read_row(shard, kWords, row, vocabulary_, words);
    std::fill_n(into, tokens_, kNoLabel);
    for (size_t i = 0; i < places.size() && places[i] != 0; ++i) into[places[i]] = words[i];
  }

  const int64_t vocabulary_;
  int64_t tokens_ = 0, masked_ = 0, size_ = 0;
  std::vector<DataField> fields_;
  mutable std::vector<Shard> shards_;  // like open_, under library()
  mutable std::deque<Shard*> open_;
};

}  // namespace

std::unique_ptr<Dataset> open_wiki_shards(SpecOptions& options, const std::string& split) {
  return std::make_unique<WikiShards>(options, split);
}

}  // namespace pipewright
