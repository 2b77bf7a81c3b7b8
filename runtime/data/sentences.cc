// Sentences with a class each, as in SST-2: a line each, columns divided by tabs.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/data/encoded_text.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

constexpr const char* kRemedy =
    "Expected a header with the columns sentence and label, then a line for each sentence, in UTF-8, its "
    "columns "
    "divided by tabs.";

std::vector<std::string> columns_of(const std::string& line) {
  std::vector<std::string> columns;
  std::istringstream stream(line);
  for (std::string column; std::getline(stream, column, '\t');) columns.push_back(column);
  if (!line.empty() && line.back() == '\t') columns.emplace_back();
  return columns;
}

/// Lines of a file, with the place for messages.
class Lines {
 public:
  explicit Lines(const std::string& file) : file_(file), stream_(read_file(file)) {}
  /// The next that is not empty, in columns; nothing at the end.
  std::optional<std::vector<std::string>> next() {
    std::string line;
    while (std::getline(stream_, line)) {
      ++number_;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.empty()) continue;
      if (utf8_prefix(line) != line.size())
        fail("byte " + std::to_string(utf8_prefix(line) + 1) + " is not UTF-8");
      return columns_of(line);
    }
    return std::nullopt;
  }
  [[noreturn]] void fail(const std::string& message, const std::string& remedy = kRemedy) const {
    throw InputError(file_ + ":" + std::to_string(number_) + ": " + message, remedy);
  }

 private:
  std::string file_;
  std::istringstream stream_;
  int64_t number_ = 0;
};

class Sentences : public EncodedDataset {
 public:
  Sentences(SpecOptions& options, const std::string& split)
      : tokens_(options.integer("tokens", 128, 3, 1 << 16)),
        classes_(options.integer("classes", 2, 2, 1 << 20)) {
    const std::string root = options.string("root", ""), vocabulary = options.string("vocabulary", "");
    std::string file = options.string("file", "");
    const bool lower = options.choice("lower", "yes", {"yes", "no"}) == "yes";
    options.finish();
    if (file.empty() == root.empty()) {
      options.fail("root", root.empty() ? "it is missing" : "file is given, too",
                   "expected root=DIR, a folder with train.tsv and dev.tsv, or file=FILE.tsv");
    }
    if (vocabulary.empty()) options.fail("vocabulary", "it is missing; expected vocabulary=vocab.txt");
    if (file.empty())
      file = (std::filesystem::path(root) / (split == kTrainSplit ? "train.tsv" : "dev.tsv")).string();
    pieces_.emplace(vocabulary, lower);
    read_sentences(file);
    remark_ = std::to_string(cut_) + " of " + std::to_string(size()) + " sentences of " + file +
              " have more than tokens=" + std::to_string(tokens_) +
              " tokens with [CLS] and [SEP]; their ends are left out";
    fields_ = encoded_fields(tokens_);
    fields_.push_back({"labels", {"int64", {}}});
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return classes_; }
  int64_t vocabulary() const override { return pieces_->size(); }

  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    const auto i = static_cast<size_t>(index);
    auto* const out = static_cast<int64_t*>(into);
    if (field == kEncodedFields) {
      *out = labels_[i];
    } else {
      EncodedText{sentences_[i]}.write(field, *pieces_, tokens_, out);
    }
  }

  std::vector<std::string> remarks() const override {
    return cut_ == 0 ? std::vector<std::string>{} : std::vector<std::string>{remark_};
  }

 private:
  void read_sentences(const std::string& file) {
    Lines lines(file);
    const auto header = lines.next();
    if (!header) throw InputError(file + ": is empty", kRemedy);
    const auto column = [&](const char* name) {
      const auto found = std::find(header->begin(), header->end(), name);
      if (found == header->end()) lines.fail("the header has no column " + in_quotes(name));
      return static_cast<size_t>(found - header->begin());
    };
    const size_t sentence = column("sentence"), label = column("label");
    while (const auto columns = lines.next()) {
      if (columns->size() != header->size()) {
        lines.fail("has " + std::to_string(columns->size()) + " columns, the header has " +
                   std::to_string(header->size()));
      }
      labels_.push_back(label_of((*columns)[label], lines));
      add((*columns)[sentence], lines);
    }
    if (labels_.empty()) throw InputError(file + ": holds no sentence", kRemedy);
    if (size() > kMaximumSamples) throw InputError(file + ": has too many sentences");
  }

  int64_t label_of(const std::string& text, const Lines& lines) const {
    const bool digits = !text.empty() && text.size() < 10 &&
                        std::all_of(text.begin(), text.end(), [](char c) { return '0' <= c && c <= '9'; });
    const int64_t label = digits ? std::stoll(text) : -1;
    if (!digits || label >= classes_) {
      lines.fail("label: got " + in_quotes(text) + ", expected 0.." + std::to_string(classes_ - 1),
                 "With more classes, --data sentences:classes=N,...");
    }
    return label;
  }

  void add(const std::string& text, const Lines& lines) {
    std::vector<int32_t> sentence;
    for (const WordPiece& piece : pieces_->pieces_of(text)) sentence.push_back(piece.token);
    if (sentence.empty()) lines.fail("the sentence is empty");
    const auto most = static_cast<size_t>(tokens_ - 2);
    if (sentence.size() > most) {
      ++cut_;
      sentence.resize(most);
    }
    sentences_.push_back(std::move(sentence));
  }

  int64_t tokens_, classes_;
  std::optional<WordPieces> pieces_;
  std::vector<std::vector<int32_t>> sentences_;
  std::vector<int64_t> labels_;
  std::vector<DataField> fields_;
  int64_t cut_ = 0;  // sentences
  std::string remark_;
};

}  // namespace

std::unique_ptr<Dataset> open_sentences(SpecOptions& options, const std::string& split) {
  return std::make_unique<Sentences>(options, split);
}

}  // namespace pipewright
