#include "runtime/commands/metrics_export.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "graph/json.h"
#include "runtime/commands/event_file.h"
#include "runtime/commands/run_report.h"
#include "runtime/journal/metrics_file.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

/// A line of metrics.jsonl: of a minibatch, or of what its only key says.
struct Line {
  std::string kind;  ///< "" = of a minibatch; "evaluation", "speed", ...
  const Json& numbers;
  int64_t minibatch = 0;  ///< its own; of another: minibatches that were trained before
};

class Metrics {
 public:
  explicit Metrics(const fs::path& run) : file_(run / "metrics.jsonl") {
    for_each_metrics_line(file_, [this](const Json& line, const std::string&) { ends_.add(line); });
  }

  void for_each(const std::function<void(const Line&)>& take) const {
    for_each_metrics_line(file_, [&](const Json& json, const std::string& where) {
      const auto minibatch = json.find("minibatch");
      const auto only = json.begin();
      if (minibatch != json.end() ? !minibatch->is_number_integer() : !only.value().is_object())
        throw InputError(where + ": no line of metrics.jsonl");
      if (minibatch != json.end()) return take({"", json, minibatch->get<int64_t>()});
      take({only.key(), only.value(), ends_.trained_before(only.key(), only.value())});
    });
  }

  /// Unix time at which it was last written.
  double written_seconds() const {
    struct stat status {};
    if (::stat(file_.c_str(), &status) != 0) return 0;
    return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
  }

 private:
  const fs::path file_;
  EpochEnds ends_;
};

std::string column_of(const Line& line, const std::string& key) {
  return line.kind.empty() ? key : line.kind + "." + key;
}

// NaN for null, and for what is no number.
double number_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : std::nan("");
}

bool is_number(const Json& json) { return json.is_number() || json.is_boolean() || json.is_null(); }

std::string cell_of(const Json& json) {
  if (json.is_null()) return "nan";
  if (json.is_boolean()) return json.get<bool>() ? "1" : "0";
  return json.dump();
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

// Those of minibatches first, then kind by kind, each in the order in which they come.
std::vector<std::string> columns_of(const std::vector<Metrics>& runs) {
  std::vector<std::string> kinds = {""};
  std::map<std::string, std::vector<std::string>> by_kind;
  std::set<std::string> known = {"minibatch"};
  for (const Metrics& run : runs) {
    run.for_each([&](const Line& line) {
      if (std::find(kinds.begin(), kinds.end(), line.kind) == kinds.end()) kinds.push_back(line.kind);
      for (const auto& [key, value] : line.numbers.items()) {
        const std::string column = column_of(line, key);
        if (is_number(value) && known.insert(column).second) by_kind[line.kind].push_back(column);
      }
    });
  }
  std::vector<std::string> columns;
  for (const std::string& kind : kinds)
    columns.insert(columns.end(), by_kind[kind].begin(), by_kind[kind].end());
  return columns;
}

// The throughput of the last minibatches, as the progress line has it.
class Throughput {
 public:
  /// Of the minibatches that end with this one; 0 where that is not known.
  double add(const Json& minibatch) {
    last_.push_back({number_in(minibatch, "elapsed_seconds"), number_in(minibatch, "samples")});
    if (last_.size() > kWindow + 1) last_.pop_front();
    double samples = 0;
    for (size_t i = 1; i < last_.size(); ++i) samples += last_[i].samples;
    const double seconds = last_.back().seconds - last_.front().seconds;  // of replicas, by clocks of two
    return seconds > 0 ? samples / seconds : 0;
  }

 private:
  static constexpr size_t kWindow = 50;
  struct Minibatch {
    double seconds = 0, samples = 0;
  };
  std::deque<Minibatch> last_;
};

void add_minibatch(EventFile& events, double now, const Line& line, double samples_per_second) {
  for (const char* key : {"loss", "learning_rate", "gradient_norm"})
    if (line.numbers.contains(key)) events.add(now, line.minibatch, key, number_in(line.numbers, key));
  if (samples_per_second > 0) events.add(now, line.minibatch, "samples_per_second", samples_per_second);
}

// Of the lines that tell of something else than a minibatch.
void add_other(EventFile& events, double now, const Line& line) {
  const Json& numbers = line.numbers;
  const auto number = [&](const char* key) { return cell_of(numbers.value(key, Json())); };
  const auto add = [&](const std::string& tag, const char* key) {
    if (numbers.contains(key)) events.add(now, line.minibatch, tag, number_in(numbers, key));
  };
  if (line.kind == "evaluation")
    for (const char* key : {"loss", "top1", "top5", "perplexity", "exact_match", "f1"})
      add(std::string("evaluation/") + key, key);
  if (line.kind == "speed") add("slowdown/rank " + number("rank"), "slowdown");
  if (line.kind == "link") add("slowdown/link " + number("from") + "-" + number("to"), "slowdown");
  if (line.kind == "spread") add("spread/rank " + number("rank"), "part");
}

void write_events(const Metrics& metrics, const fs::path& folder) {
  double last_seconds = 0;
  metrics.for_each([&](const Line& line) {
    if (line.kind.empty()) last_seconds = number_in(line.numbers, "elapsed_seconds");
  });
  const double began = metrics.written_seconds() - last_seconds;
  EventFile events(folder, began);
  Throughput throughput;
  double now = began;
  metrics.for_each([&](const Line& line) {
    if (!line.kind.empty()) return add_other(events, now, line);
    now = began + number_in(line.numbers, "elapsed_seconds");
    add_minibatch(events, now, line, throughput.add(line.numbers));
  });
  events.commit();
}

}  // namespace

void write_metrics_csv(const std::vector<fs::path>& runs, const fs::path& file) {
  const std::vector<std::string> names = run_names(runs);
  const std::vector<Metrics> metrics(runs.begin(), runs.end());
  const std::vector<std::string> columns = columns_of(metrics);
  AtomicFile out(file);
  std::string text = runs.size() > 1 ? "run,minibatch" : "minibatch";
  for (const std::string& column : columns) text += "," + column;
  text += "\n";
  const auto flush = [&] {
    out.write(text.data(), text.size());
    text.clear();
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    metrics[i].for_each([&](const Line& line) {
      std::map<std::string, std::string> cells;
      for (const auto& [key, value] : line.numbers.items())
        if (is_number(value)) cells[column_of(line, key)] = cell_of(value);
      if (runs.size() > 1) text += quoted(names[i]) + ",";
      text += std::to_string(line.minibatch);
      for (const std::string& column : columns) text += "," + cells[column];
      text += "\n";
      constexpr size_t kPiece = 1 << 16;
      if (text.size() > kPiece) flush();
    });
  }
  flush();
  out.commit();
}

void write_tensorboard(const std::vector<fs::path>& runs, const fs::path& folder) {
  const std::vector<std::string> names = run_names(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    const Metrics metrics(runs[i]);
    const fs::path own = folder / names[i];
    std::error_code error;
    fs::create_directories(own, error);
    if (error)
      throw RunError(own.string() + ": cannot be made: " + error.message(),
                     "give --tensorboard another folder");
    write_events(metrics, own);
  }
}

}  // namespace pipewright
