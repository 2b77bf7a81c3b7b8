#include "runtime/journal/live_file.h"

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "graph/atomic_file.h"
#include "graph/document.h"
#include "graph/error.h"

namespace pipewright {

LiveFile::LiveFile(std::filesystem::path folder, int64_t minibatches, int64_t minibatches_per_epoch)
    : file_(std::move(folder) / LiveStatus::kFile) {
  status_.minibatches = minibatches;
  status_.minibatches_per_epoch = minibatches_per_epoch;
}

LiveFile::~LiveFile() {
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
}

void LiveFile::take(int64_t rank, const RankStatus& told, bool evaluating) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto [place, first] = status_.ranks.try_emplace(rank);
  LiveRank& known = place->second;
  const std::optional<int64_t> minibatch =
      told.minibatch >= 0 ? std::optional(told.minibatch) : known.minibatch;
  changed_ = changed_ || first || known.operation != told.operation || known.minibatch != minibatch;
  known = {now,       told.operation,      told.seconds,
           minibatch, told.waited_seconds, std::max<int64_t>(0, told.peak_memory_bytes)};
  status_.at_seconds = now;
  status_.evaluating = evaluating;
  const auto time = std::chrono::steady_clock::now();
  if (!writes_ || !changed_ || time - written_ < kEvery) return;
  written_ = time;
  changed_ = false;
  try {
    const std::string text = document_text(status_);
    AtomicFile file(file_);
    file.write(text.data(), text.size());
    file.commit_undurably();
  } catch (const Error&) {
    writes_ = false;  // what the run itself writes will say what is wrong there
  }
}

}  // namespace pipewright
