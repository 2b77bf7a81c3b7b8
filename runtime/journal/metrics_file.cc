#include "runtime/journal/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "graph/error.h"

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

namespace {

// The file's lines up to the first that is torn or none of metrics.jsonl, those with a wanted evaluation or
// minibatch only. Returns the number behind the last minibatch before next_minibatch, -1 where there is none
// or a gap.
int64_t read_lines(const std::filesystem::path& file, int64_t next_minibatch, int64_t evaluated_epochs,
                   const std::function<void(const std::string&, const Json&)>& keep, int64_t* told) {
  std::ifstream in(file);
  int64_t expected = -1;
  std::string line;
  while (std::getline(in, line) && !in.eof()) {  // a line without its end is torn
    Json json;
    try {
      json = parse_json(line, file.string());
    } catch (const InputError&) {
      break;
    }
    if (!json.is_object()) break;
    if (json.contains("evaluation")) {
      const Json& evaluation = json["evaluation"];
      if (!evaluation.is_object() || !evaluation.contains("epoch")) break;
      const Json& epoch = evaluation["epoch"];
      const Json within = evaluation.value("minibatches", Json());  // of its epoch
      if (within.is_number_integer() ? within <= next_minibatch
                                     : epoch.is_number_integer() && epoch < evaluated_epochs)
        keep(line, json);
      continue;
    }
    if (json.contains("speed") || json.contains("link") || json.contains("spread")) {
      const Json& speed = json.begin().value();  // their only key
      const Json found = speed.is_object() ? speed.value("found", Json()) : Json();
      if (!found.is_number_integer()) break;
      // A drain before `next_minibatch` is the checkpoint's own: a run that goes on from it has it behind
      // itself.
      if (found < next_minibatch || (json.contains("spread") && found == next_minibatch)) keep(line, json);
      continue;
    }
    if (json.contains("recovery")) {
      keep(line, json);
      continue;
    }
    if (json.contains("generation")) {
      const Json& generation = json["generation"];
      const Json first = generation.is_object() ? generation.value("first_minibatch", Json()) : Json();
      if (!first.is_number_integer()) break;
      if (first < next_minibatch) keep(line, json);
      continue;
    }
    const Json minibatch = json.value("minibatch", Json());
    if (!minibatch.is_number_integer() || !json.contains("loss") || !json.contains("elapsed_seconds")) break;
    *told = std::max(*told, minibatch.get<int64_t>() + 1);
    // An evaluation may stand behind minibatches of the next epoch: all the lines are looked through.
    if (minibatch >= next_minibatch) continue;
    if (expected >= 0 && minibatch != expected) return -1;
    expected = minibatch.get<int64_t>() + 1;
    keep(line, json);
  }
  return expected;
}

}  // namespace

bool read_metrics_history(const std::filesystem::path& file, int64_t next_minibatch, int64_t evaluated_epochs,
                          const std::function<void(const std::string& line, const Json& json)>& keep,
                          int64_t* told) {
  const auto nothing = [](const std::string&, const Json&) {};
  int64_t ignored = 0;
  const int64_t end = read_lines(file, next_minibatch, evaluated_epochs, nothing, told ? told : &ignored);
  if (end != next_minibatch && (next_minibatch > 0 || end >= 0)) return false;
  read_lines(file, next_minibatch, evaluated_epochs, keep, &ignored);
  return true;
}

}  // namespace pipewright
