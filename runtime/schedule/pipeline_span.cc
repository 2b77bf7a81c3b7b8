#include "runtime/schedule/pipeline_span.h"

#include <algorithm>

#include "graph/error.h"

namespace pipewright {

SharedSpan::SharedSpan(Span of_run, int64_t interval, int64_t pipeline, MinibatchSource& source)
    : PipelineSpan(of_run), whole_(of_run), interval_(interval), pipeline_(pipeline), source_(source) {
  part(0);
}

// Under the lock, or where nobody else knows of the object yet.
const Span& SharedSpan::part(int64_t number) const {
  while (static_cast<int64_t>(parts_.size()) <= number && (parts_.empty() || parts_.back().count > 0))
    parts_.push_back(source_.part(whole_, interval_, pipeline_, static_cast<int64_t>(parts_.size())));
  return parts_[std::min(static_cast<size_t>(number), parts_.size() - 1)];
}

Span SharedSpan::own() const {
  const std::lock_guard lock(mutex_);
  if (parts_.front().count == 0) return {0, 0};
  const int64_t first = parts_.front().first % interval_;
  const Span& last = parts_.back();
  const auto known = static_cast<int64_t>(parts_.size());
  int64_t end = 0;
  if (last.count == 0) {
    // A part before the last one that ended earlier was the end, too.
    const Span& before = parts_[parts_.size() - 2];
    end = (known - 2) * interval_ + before.first % interval_ + before.count;
  } else if (last.end() % interval_ != 0) {
    end = (known - 1) * interval_ + last.first % interval_ + last.count;
  } else {
    const int64_t parts = (whole_.end() + interval_ - 1) / interval_ - whole_.first / interval_;
    end = parts * interval_;
  }
  return {first, end - first};
}

std::optional<int64_t> SharedSpan::to_run(int64_t own) const {
  const std::lock_guard lock(mutex_);
  const Span& found = part(own / interval_);
  const int64_t place = own % interval_ - found.first % interval_;
  if (found.count == 0 || place < 0 || place >= found.count) return std::nullopt;
  return found.first + place;
}

int64_t SharedSpan::to_own(int64_t of_run) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Span& part) {
    return part.first <= of_run && of_run < part.end();
  });
  PW_CHECK(found != parts_.end(),
           "minibatch " << of_run << " has not been handed out to pipeline " << pipeline_);
  return (found - parts_.begin()) * interval_ + of_run % interval_;
}

// Parts come in the order of the run.
int64_t SharedSpan::before(int64_t of_run) const {
  const std::lock_guard lock(mutex_);
  if (parts_.front().count == 0) return 0;
  int64_t own = parts_.front().first % interval_;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Span& part = parts_[i];
    const int64_t taken = std::clamp<int64_t>(of_run - part.first, 0, part.count);
    if (taken == 0) break;
    own = static_cast<int64_t>(i) * interval_ + part.first % interval_ + taken;
  }
  return own;
}

}  // namespace pipewright
