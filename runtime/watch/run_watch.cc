#include "runtime/watch/run_watch.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "graph/error.h"
#include "graph/printable.h"

namespace pipewright {

RunWatch::RunWatch(std::filesystem::path folder) : reader_(std::move(folder)) {
  if (Terminal::is_one(STDOUT_FILENO)) terminal_.emplace(STDOUT_FILENO, Terminal::wants_colour());
}

const RunView& RunWatch::look() {
  if (Clock::now() - looked_ < kEvery) return view_;
  view_ = reader_.look();
  looked_ = reader_.is_behind() ? Clock::time_point{} : Clock::now();
  if (!reader_.is_behind()) show(/*last=*/view_.has_ended());
  return view_;
}

const RunView& RunWatch::finish() {
  do view_ = reader_.look();
  while (reader_.is_behind());
  show(/*last=*/true);
  return view_;
}

void RunWatch::show(bool last) {
  using Phase = RunView::Phase;
  const bool something = view_.phase != Phase::kAbsent && view_.phase != Phase::kStarting;
  began_ = began_ || something;
  if (!something) return;
  if (!terminal_) return show_lines(last);
  const int64_t height = std::max<int64_t>(6, terminal_->height() - 1);
  unread_ = unread_ || !terminal_->draw(screen_lines(view_, terminal_->width(), height));
}

void RunWatch::show_lines(bool last) {
  constexpr int64_t kMostOld = 5;  // of what was told before this process looked
  if (told_done_ < 0) {
    print(title_text(view_));
    told_events_ = std::max<int64_t>(0, view_.told_events - kMostOld);
    told_done_ = 0;
  }
  const auto events = static_cast<int64_t>(view_.events.size());
  const int64_t fresh = std::clamp<int64_t>(view_.told_events - told_events_, 0, events);
  for (int64_t i = events - fresh; i < events; ++i) print(view_.events[static_cast<size_t>(i)]);
  told_events_ = view_.told_events;
  if (!last && (view_.done == told_done_ || Clock::now() - said_ < kLineEvery)) return;
  const std::string line = progress_text(view_);
  if (line.empty()) return;
  print(line);
  told_done_ = view_.done;
  said_ = Clock::now();
  if (last && view_.has_ended()) print(title_text(view_));
}

void RunWatch::print(const std::string& line) {
  std::cout << printable(line) << "\n" << std::flush;
  unread_ = unread_ || !std::cout.good();
}

void RunWatch::print_above(std::string_view text) {
  if (terminal_) unread_ = unread_ || !terminal_->print_above(text);
}

void demand_done(const RunView& run) {
  using Phase = RunView::Phase;
  if (run.phase == Phase::kInterrupted)
    throw Error(ExitCode::kInterrupted, run.folder + ": the run was interrupted: " + run.why);
  if (run.phase == Phase::kFailed)
    throw RunError(run.folder + ": the run has failed: " + run.why,
                   "each rank's own words are in its log and in flight/ there");
}

}  // namespace pipewright
