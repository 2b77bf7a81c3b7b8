#include "runtime/journal/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>
#include <type_traits>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "graph/regular_file.h"

namespace pipewright {

MetricsFile::MetricsFile(std::filesystem::path file) : file_(std::move(file)) {
  descriptor_ = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const int error = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    fail(error);
  }
  regular_ = S_ISREG(status.st_mode);
  bytes_ = status.st_size;
}

MetricsFile::~MetricsFile() { ::close(descriptor_); }

void MetricsFile::fail(int error) const {
  throw RunError(
      file_.string() + ": cannot be written: " + std::strerror(error),
      "Is there room on the disk, and the right to write there? Lines that were written before are "
      "whole.");
}

void MetricsFile::append(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (regular_ && done > 0 && ::ftruncate(descriptor_, bytes_) != 0) {
        // The torn line stays; whoever goes on from the file leaves it out.
      }
      fail(error);
    }
    done += static_cast<size_t>(written);
  }
  bytes_ += static_cast<int64_t>(text.size());
}

void cut_file(const std::filesystem::path& file, int64_t bytes) {
  if (::truncate(file.c_str(), bytes) != 0)
    throw RunError(file.string() + ": cannot be written: " + std::strerror(errno));
  sync_to_disk(file);
}

void MetricsFile::demand_in_place() const {
  struct stat there {};
  struct stat open {};
  if (::fstat(descriptor_, &open) != 0) fail(errno);
  const bool found = ::stat(file_.c_str(), &there) == 0;
  if (!found && errno != ENOENT && errno != ENOTDIR) fail(errno);
  if (found && there.st_dev == open.st_dev && there.st_ino == open.st_ino) return;
  std::error_code ignored;
  const bool folder = std::filesystem::exists(file_.parent_path(), ignored);
  throw RunError(file_.string() + (found ? ": another file has taken its place" : ": has gone") +
                     " while the run wrote into it" + (folder ? "" : ", and its folder with it") +
                     ": the losses of this run are lost",
                 "Somebody removed or moved it. Checkpoints that are still there can be gone on from with "
                 "--resume.");
}

void for_each_metrics_line(const std::filesystem::path& file,
                           const std::function<void(const Json& line, const std::string& where)>& take) {
  std::ifstream in(file);
  if (!in)
    throw InputError(file.string() + (file_exists(file) ? ": cannot be read"
                                                        : ": is not there, and only it has the run's numbers "
                                                          "minibatch by minibatch"),
                     "Somebody has removed it, or the folder is no --output of a pipewright-runtime train or "
                     "launch.");
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    const std::string where = file.string() + ", line " + std::to_string(number);
    const Json line = parse_json(text, where);
    if (!line.is_object() || line.empty()) throw InputError(where + ": no line of metrics.jsonl");
    take(line, where);
  }
}

void EpochEnds::add(const Json& line) {
  const auto minibatch = line.find("minibatch"), epoch = line.find("epoch");
  if (minibatch == line.end() || epoch == line.end()) return;
  if (!minibatch->is_number_integer() || !epoch->is_number_integer()) return;
  int64_t& end = minibatches_[epoch->get<int64_t>()];
  end = std::max(end, minibatch->get<int64_t>() + 1);
}

int64_t EpochEnds::trained_before(const std::string& kind, const Json& numbers) const {
  const auto integer = [&](const char* key) -> std::optional<int64_t> {
    const auto found = numbers.find(key);
    if (found == numbers.end() || !found->is_number_integer()) return std::nullopt;
    return found->get<int64_t>();
  };
  if (kind == "evaluation") {
    if (const auto within = integer("minibatches")) return *within;
  } else {
    for (const char* key : {"first_minibatch", "next_minibatch", "found"})
      if (const auto place = integer(key)) return *place;
  }
  const std::optional<int64_t> epoch = integer("epoch");
  const auto end = epoch ? minibatches_.find(*epoch) : minibatches_.end();
  return end == minibatches_.end() ? 0 : end->second;
}

namespace {

// The number behind `key` in a line as the journal writes it; nothing where it is another line. A loss that
// is not finite is null.
template <typename Number>
std::optional<Number> number_behind(const std::string& line, std::string_view key, size_t from) {
  const size_t at = line.find(key, from);
  if (at == std::string::npos) return std::nullopt;
  const char* begin = line.data() + at + key.size();
  if constexpr (std::is_floating_point_v<Number>)
    if (line.compare(at + key.size(), 4, "null") == 0) return std::numeric_limits<Number>::quiet_NaN();
  Number value{};
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), value);
  return error == std::errc() && (*end == ',' || *end == '}') ? std::optional(value) : std::nullopt;
}

std::optional<MetricsLine::Minibatch> minibatch_of(const std::string& line) {
  constexpr std::string_view kBegin = "{\"minibatch\":";
  if (line.rfind(kBegin, 0) != 0 || line.back() != '}') return std::nullopt;
  const auto number = number_behind<int64_t>(line, kBegin, 0);
  const auto loss = number_behind<double>(line, "\"loss\":", kBegin.size());
  const auto elapsed = number_behind<double>(line, "\"elapsed_seconds\":", kBegin.size());
  if (!number || !loss || !elapsed) return std::nullopt;
  return MetricsLine::Minibatch{*number, *loss, *elapsed};
}

std::optional<MetricsLine::Minibatch> minibatch_of(const Json& json) {
  const Json minibatch = json.value("minibatch", Json());
  if (!minibatch.is_number_integer() || !json.contains("loss") || !json.contains("elapsed_seconds"))
    return std::nullopt;
  return MetricsLine::Minibatch{minibatch.get<int64_t>(), number_or_nan(json["loss"]),
                                number_or_nan(json["elapsed_seconds"])};
}

enum class Part { kKept, kLeftOut, kTorn };

// Of a line that is no minibatch's.
Part part_of(const Json& json, int64_t next_minibatch, int64_t evaluated_epochs) {
  const auto part = [](bool keep) { return keep ? Part::kKept : Part::kLeftOut; };
  if (json.contains("evaluation")) {
    const Json& evaluation = json["evaluation"];
    if (!evaluation.is_object() || !evaluation.contains("epoch")) return Part::kTorn;
    const Json& epoch = evaluation["epoch"];
    const Json within = evaluation.value("minibatches", Json());  // of its epoch
    return part(within.is_number_integer() ? within <= next_minibatch
                                           : epoch.is_number_integer() && epoch < evaluated_epochs);
  }
  if (json.contains("speed") || json.contains("link") || json.contains("spread")) {
    const Json& speed = json.begin().value();  // their only key
    const Json found = speed.is_object() ? speed.value("found", Json()) : Json();
    if (!found.is_number_integer()) return Part::kTorn;
    // A drain before `next_minibatch` is the checkpoint's own: a run that goes on from it has it behind
    // itself.
    return part(found < next_minibatch || (json.contains("spread") && found == next_minibatch));
  }
  if (json.contains("recovery")) return Part::kKept;
  if (!json.contains("generation")) return Part::kTorn;
  const Json& generation = json["generation"];
  const Json first = generation.is_object() ? generation.value("first_minibatch", Json()) : Json();
  return first.is_number_integer() ? part(first < next_minibatch) : Part::kTorn;
}

using KeepLine = std::function<void(const MetricsLine&, int64_t begin)>;

// The file's lines up to the first that is torn or none of metrics.jsonl, those with a wanted evaluation or
// minibatch only, with the byte at which each begins. Returns the number behind the last minibatch before
// next_minibatch, -1 where there is none or a gap.
int64_t read_lines(const std::filesystem::path& file, int64_t next_minibatch, int64_t evaluated_epochs,
                   const KeepLine& keep, int64_t* told) {
  std::ifstream in(file);
  int64_t expected = -1, begin = 0, end = 0;
  std::string text;
  for (; std::getline(in, text) && !in.eof(); begin = end) {  // a line without its end is torn
    end = begin + static_cast<int64_t>(text.size()) + 1;
    MetricsLine line{text, minibatch_of(text), {}};
    if (!line.minibatch) {
      try {
        line.json = parse_json(text, file.string());
      } catch (const InputError&) {
        break;
      }
      if (!line.json.is_object()) break;
      line.minibatch = minibatch_of(line.json);
    }
    if (!line.minibatch) {
      const Part part = part_of(line.json, next_minibatch, evaluated_epochs);
      if (part == Part::kTorn) break;
      if (part == Part::kKept) keep(line, begin);
      continue;
    }
    const int64_t minibatch = line.minibatch->number;
    *told = std::max(*told, minibatch + 1);
    // An evaluation may stand behind minibatches of the next epoch: all the lines are looked through.
    if (minibatch >= next_minibatch) continue;
    if (expected >= 0 && minibatch != expected) return -1;
    expected = minibatch + 1;
    keep(line, begin);
  }
  return expected;
}

}  // namespace

MetricsHistory::MetricsHistory(std::filesystem::path file, int64_t next_minibatch, int64_t evaluated_epochs)
    : file_(std::move(file)), next_minibatch_(next_minibatch), evaluated_epochs_(evaluated_epochs) {
  std::optional<int64_t> kept = 0;
  const auto measure = [&](const MetricsLine& line, int64_t begin) {
    kept = kept == begin ? std::optional(begin + static_cast<int64_t>(line.text.size()) + 1) : std::nullopt;
  };
  const int64_t end = read_lines(file_, next_minibatch_, evaluated_epochs_, measure, &told_);
  whole_ = end == next_minibatch_ || (next_minibatch_ == 0 && end < 0);
  if (whole_) bytes_kept_ = kept;
}

void MetricsHistory::read(const std::function<void(const MetricsLine&)>& keep) const {
  int64_t ignored = 0;
  if (!whole_) return;
  read_lines(
      file_, next_minibatch_, evaluated_epochs_, [&](const MetricsLine& line, int64_t) { keep(line); },
      &ignored);
}

}  // namespace pipewright
