// Questions about texts, answered by a span of the text: SQuAD 1.1 (Rajpurkar et al. 2016). Long texts are
// read through overlapping windows, as BERT does.
#include <algorithm>
#include <optional>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/data/answers.h"
#include "runtime/data/encoded_text.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

constexpr size_t kStartsField = kEncodedFields, kEndsField = kEncodedFields + 1;

struct Context {
  std::string text;
  std::vector<WordPiece> pieces;
  std::vector<int32_t> tokens;  // theirs
};

struct Question {
  std::string id;
  size_t context;
  std::vector<int32_t> tokens;
  std::vector<std::string> answers;
  size_t first = 0, last = 0;  // pieces of the first answer
  bool is_found = false;       // ... which stands where the file says
};

struct Window {
  size_t question;
  size_t begin, size;  // pieces of the context
};

/// Bytes up to character `characters`; npos if the text has fewer.
size_t byte_of(const std::string& text, int64_t characters) {
  size_t at = 0;
  for (; characters > 0 && at < text.size(); --characters) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  }
  return characters > 0 ? std::string::npos : at;
}

class Questions : public QuestionDataset {
 public:
  Questions(SpecOptions& options, const std::string& split)
      : tokens_(options.integer("tokens", 384, 8, 1 << 16)),
        stride_(options.integer("stride", 128, 1, 1 << 16)),
        most_of_question_(options.integer("question", 64, 1, 1 << 16)),
        longest_answer_(options.integer("answer", 30, 1, 1 << 16)) {
    std::string file = options.string("file", "");
    const std::string evaluation = options.string("evaluation", "");
    const std::string vocabulary = options.string("vocabulary", "");
    const bool lower = options.choice("lower", "yes", {"yes", "no"}) == "yes";
    options.finish();
    if (file.empty()) options.fail("file", "it is missing; expected file=train-v1.1.json");
    if (vocabulary.empty()) options.fail("vocabulary", "it is missing; expected vocabulary=vocab.txt");
    // [CLS] question [SEP] window [SEP]
    const int64_t room = tokens_ - most_of_question_ - 3;
    if (room < 1) {
      options.fail("tokens", "got " + std::to_string(tokens_) + ", expected more than the question's " +
                                 std::to_string(most_of_question_) + " and three marks");
    }
    if (stride_ > room) {
      options.fail("stride",
                   "got " + std::to_string(stride_) + ", expected at most " + std::to_string(room) +
                       ", the tokens of a text that stand beside a long question: what is between two "
                       "windows would not be read");
    }
    if (split == kEvaluationSplit && !evaluation.empty()) file = evaluation;
    pieces_.emplace(vocabulary, lower);
    read_file_of(file);
    make_windows(/*with_lost=*/split == kEvaluationSplit);
    if (windows_.empty() || static_cast<int64_t>(windows_.size()) > kMaximumSamples) {
      throw InputError(file + ": holds " + std::to_string(windows_.size()) +
                           " windows of questions, expected 1.." + std::to_string(kMaximumSamples),
                       lost_ > 0 ? lost_text(file) : "");
    }
    if (lost_ > 0) remarks_.push_back(lost_text(file));
    fields_ = encoded_fields(tokens_);
    fields_.push_back({"starts", {"int64", {}}});
    fields_.push_back({"ends", {"int64", {}}});
  }

  int64_t size() const override { return static_cast<int64_t>(windows_.size()); }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return tokens_; }
  int64_t vocabulary() const override { return pieces_->size(); }
  std::vector<std::string> remarks() const override { return remarks_; }

  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    const Window& window = windows_[static_cast<size_t>(index)];
    const Question& question = questions_[window.question];
    auto* const out = static_cast<int64_t*>(into);
    if (field < kEncodedFields) {
      encoded(window).write(field, *pieces_, tokens_, out);
      return;
    }
    // Where the window does not hold the whole answer, [CLS] is asked for.
    const bool holds =
        question.is_found && window.begin <= question.first && question.last < window.begin + window.size;
    const size_t piece = field == kStartsField ? question.first : question.last;
    *out = holds ? static_cast<int64_t>(place_of_context(question) + piece - window.begin) : 0;
  }

  WindowAnswer answer_of(int64_t index, const float* begins, const float* ends) const override {
    const Window& window = windows_[static_cast<size_t>(index)];
    const Question& question = questions_[window.question];
    const Context& context = contexts_[question.context];
    const size_t offset = place_of_context(question);
    size_t first = 0, last = 0;
    double best = 0;
    for (size_t begin = 0; begin < window.size; ++begin) {
      const size_t behind = std::min(window.size, begin + static_cast<size_t>(longest_answer_));
      for (size_t end = begin; end < behind; ++end) {
        const double score = double{begins[offset + begin]} + double{ends[offset + end]};
        if ((begin > 0 || end > 0) && !(score > best)) continue;
        best = score;
        first = begin;
        last = end;
      }
    }
    const auto from = static_cast<size_t>(context.pieces[window.begin + first].begin);
    const auto to = static_cast<size_t>(context.pieces[window.begin + last].end);
    return {static_cast<int64_t>(window.question), best,
            judged(context.text.substr(from, to - from), question.answers)};
  }

 private:
  static size_t place_of_context(const Question& question) { return question.tokens.size() + 2; }

  EncodedText encoded(const Window& window) const {
    const Question& question = questions_[window.question];
    return {question.tokens,
            std::span(contexts_[question.context].tokens).subspan(window.begin, window.size)};
  }

  void read_file_of(const std::string& file) {
    const Json json = parse_json(read_file(file), file);
    JsonReader reader(json, file);
    for (JsonReader& article : reader.objects("data"))
      for (JsonReader& paragraph : article.objects("paragraphs")) read_paragraph(paragraph);
    if (questions_.empty()) throw InputError(file + ": holds no question");
  }

  void read_paragraph(JsonReader& reader) {
    Context context;
    context.text = reader.string("context");
    context.pieces = pieces_->pieces_of(context.text);
    if (context.pieces.empty()) reader.fail("context", "is empty");
    for (const WordPiece& piece : context.pieces) context.tokens.push_back(piece.token);
    contexts_.push_back(std::move(context));
    for (JsonReader& each : reader.objects("qas")) read_question(each);
  }

  void read_question(JsonReader& reader) {
    Question question;
    question.id = reader.string("id");
    question.context = contexts_.size() - 1;
    for (const WordPiece& piece : pieces_->pieces_of(reader.string("question")))
      question.tokens.push_back(piece.token);
    if (question.tokens.empty()) reader.fail("question", "is empty");
    if (static_cast<int64_t>(question.tokens.size()) > most_of_question_)
      question.tokens.resize(static_cast<size_t>(most_of_question_));
    for (JsonReader& answer : reader.objects("answers")) {
      const std::string text = answer.string("text");
      const int64_t start = answer.integer("answer_start", 0, INT32_MAX);
      if (question.answers.empty()) find_answer(question, text, start);
      question.answers.push_back(text);
    }
    if (question.answers.empty()) {
      reader.fail("answers", "question " + in_quotes(question.id) + " has no answer",
                  "Expected SQuAD 1.1, where each question has one; questions without are of SQuAD 2.0.");
    }
    if (!question.is_found) {
      if (lost_++ == 0) first_lost_ = question.id;
    }
    questions_.push_back(std::move(question));
  }

  // The pieces from the one that has its first character to the one that has its last.
  void find_answer(Question& question, const std::string& text, int64_t start) const {
    const Context& context = contexts_[question.context];
    const size_t from = byte_of(context.text, start);
    if (text.empty() || from == std::string::npos || context.text.compare(from, text.size(), text) != 0)
      return;
    const auto begin = static_cast<int64_t>(from), end = begin + static_cast<int64_t>(text.size());
    const auto& pieces = context.pieces;
    const auto first =
        std::find_if(pieces.begin(), pieces.end(), [&](const WordPiece& piece) { return piece.end > begin; });
    const auto behind =
        std::find_if(first, pieces.end(), [&](const WordPiece& piece) { return piece.begin >= end; });
    if (first == behind) return;
    question.first = static_cast<size_t>(first - pieces.begin());
    question.last = static_cast<size_t>(behind - pieces.begin()) - 1;
    question.is_found = true;
  }

  // A question whose answer is lost cannot be trained; it can be asked.
  void make_windows(bool with_lost) {
    for (size_t i = 0; i < questions_.size(); ++i) {
      if (!questions_[i].is_found && !with_lost) continue;
      const size_t all = contexts_[questions_[i].context].pieces.size();
      const auto room = static_cast<size_t>(tokens_) - questions_[i].tokens.size() - 3;
      for (size_t begin = 0;; begin += static_cast<size_t>(stride_)) {
        windows_.push_back({i, begin, std::min(room, all - begin)});
        if (begin + room >= all) break;
      }
    }
  }

  std::string lost_text(const std::string& file) const {
    return std::to_string(lost_) + " of " + std::to_string(questions_.size()) + " questions of " + file +
           " are not trained: their first answer does not stand in the text at answer_start, e.g. that of " +
           in_quotes(first_lost_);
  }

  int64_t tokens_, stride_, most_of_question_, longest_answer_;
  std::optional<WordPieces> pieces_;
  std::vector<Context> contexts_;
  std::vector<Question> questions_;
  std::vector<Window> windows_;
  std::vector<DataField> fields_;
  std::vector<std::string> remarks_;
  int64_t lost_ = 0;
  std::string first_lost_;
};

}  // namespace

std::unique_ptr<Dataset> open_questions(SpecOptions& options, const std::string& split) {
  return std::make_unique<Questions>(options, split);
}

}  // namespace pipewright
