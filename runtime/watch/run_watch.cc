#include "runtime/watch/run_watch.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <iostream>
#include <system_error>
#include <vector>

#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/nearest.h"
#include "graph/printable.h"
#include "graph/regular_file.h"

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

namespace fs = std::filesystem;

namespace {

std::string without_digits(std::string name) {
  std::erase_if(name, [](unsigned char c) { return std::isdigit(c) != 0; });
  return name;
}

/// Of the folders in `parent` of which `counts` the one whose name is nearly `name`; "": none.
std::string near_folder(const fs::path& parent, const std::string& name,
                        const std::function<bool(const fs::path&)>& counts) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator entry(parent, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const std::string other = entry->path().filename().string();
    if (without_digits(other) != without_digits(name) && counts(entry->path())) names.push_back(other);
  }
  std::sort(names.begin(), names.end());
  return nearest(name, names);
}

}  // namespace

void demand_place_of_run(const fs::path& folder) {
  const std::string remedy = "give the --output of a pipewright-runtime train or launch";
  const FileWatch watch(folder);
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return;
  if (fs::exists(folder, ignored))
    throw InputError(folder.string() + ": is a file, so no run can begin there", remedy);
  const fs::path whole = fs::absolute(folder / "").lexically_normal().parent_path();
  const fs::path parent = whole.parent_path();
  const auto meant = [](const fs::path& path) { return "; did you mean '" + path.string() + "'?"; };
  if (fs::is_directory(parent, ignored)) {
    const std::string near = near_folder(parent, whole.filename().string(), [](const fs::path& beside) {
      return file_exists(beside / "run.json");
    });
    if (near.empty()) return;
    throw InputError(folder.string() + ": is not there" + meant(parent / near),
                     "of a run that is yet to begin: mkdir " + whole.string());
  }
  const std::string near =
      near_folder(parent.parent_path(), parent.filename().string(), [&](const fs::path& beside) {
        std::error_code failed;
        return fs::is_directory(beside / whole.filename(), failed);
      });
  throw InputError(folder.string() + ": is not there, nor is the folder that it would be in" +
                       (near.empty() ? "" : meant(parent.parent_path() / near / whole.filename())),
                   remedy + "; of a run that is yet to begin: mkdir -p " + parent.string());
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
