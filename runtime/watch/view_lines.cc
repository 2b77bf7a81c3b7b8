#include "runtime/watch/view_lines.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "graph/printable.h"
#include "graph/text_table.h"
#include "graph/units.h"
#include "runtime/journal/loss_text.h"

namespace pipewright {
namespace {

constexpr int64_t kUsualWidth = 80;  // of a curve where lines are as wide as one likes
constexpr double kSlow = 1.1;        // a slowdown nearer to 1 is none (LevelMonitor::kQuiet)
constexpr double kLong = 2;          // seconds in an operation that are worth a word
constexpr int64_t kCurveHeight = 5;
constexpr int64_t kShownEvents = 6;  // shown
constexpr int64_t kLeastRanks = 2;

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::string cut(const std::string& line, int64_t width) {
  if (width == kAnyWidth || characters_of(line) <= width) return line;
  std::string result;
  int64_t left = width;
  for (const char c : line) {
    const bool begins = (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    if (begins && left-- == 0) break;
    result += c;
  }
  return result;
}

std::string time_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  char buffer[32];
  if (whole >= 3600)
    std::snprintf(buffer, sizeof buffer, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(buffer, sizeof buffer, "%ld:%02ld", whole / 60, whole % 60);
  return buffer;
}

const char* phase_text(RunView::Phase phase) {
  switch (phase) {
    case RunView::Phase::kAbsent:
      return "no run yet";
    case RunView::Phase::kStarting:
      return "starts";
    case RunView::Phase::kRunning:
      return "runs";
    case RunView::Phase::kDone:
      return "done";
    case RunView::Phase::kInterrupted:
      return "interrupted";
    case RunView::Phase::kFailed:
      return "failed";
  }
  return "";
}

Emphasis emphasis_of(RunView::Phase phase) {
  if (phase == RunView::Phase::kDone) return Emphasis::kGood;
  if (phase == RunView::Phase::kFailed) return Emphasis::kBad;
  return phase == RunView::Phase::kInterrupted ? Emphasis::kWarning : Emphasis::kNone;
}

std::string doing(const RunView& run, const RankView& rank) {
  if (run.has_ended()) return "-";
  if (rank.operation.empty()) return "between two operations";
  return rank.operation +
         (rank.operation_seconds >= kLong ? " since " + text("%.0f s", rank.operation_seconds) : "");
}

std::string memory_text(const RankView& rank) {
  if (rank.memory_bytes == 0) return "-";
  std::string result = format_bytes(static_cast<double>(rank.memory_bytes));
  if (rank.predicted_memory_bytes > 0)
    result += " (" + format_bytes(static_cast<double>(rank.predicted_memory_bytes)) + ")";
  return result;
}

std::string stages_text(const RankView& rank) {
  std::string result;
  for (const int64_t stage : rank.stages) result += (result.empty() ? "" : " ") + std::to_string(stage);
  return result.empty() ? "-" : result;
}

// The head, and a line for each of the first ranks.
std::vector<ViewLine> rank_lines(const RunView& run, size_t shown, int64_t width) {
  using Side = TableColumn::Side;
  TextTable table({{"rank"},
                   {"stage", Side::kRight, 4},
                   {"doing", Side::kLeft, 0, 14},
                   {"minibatch", Side::kRight, 3},
                   {"samples/s", Side::kRight, 2},
                   {"waits", Side::kRight, 1},
                   {"memory (predicted)", Side::kRight, 5},
                   {"slowdown", Side::kRight, 1}});
  for (size_t i = 0; i < shown; ++i) {
    const RankView& rank = run.ranks[i];
    table.add({std::to_string(rank.rank), stages_text(rank), doing(run, rank),
               rank.minibatch ? std::to_string(*rank.minibatch) : "-",
               rank.samples_per_second ? text("%.0f", *rank.samples_per_second) : "-",
               rank.waiting ? text("%.0f %%", 100 * *rank.waiting) : "-", memory_text(rank),
               rank.slowdown >= kSlow ? text("%.1f", rank.slowdown) : "-"});
  }
  std::vector<ViewLine> lines;
  std::istringstream in(table.text(width));
  for (std::string line; std::getline(in, line);) lines.push_back({cut(line, width)});
  lines.resize(std::min(lines.size(), shown + 1));  // which columns are not shown is plain to see
  lines.front().emphasis = Emphasis::kHeading;
  for (size_t i = 0; i + 1 < lines.size(); ++i)
    if (run.ranks[i].slowdown >= kSlow) lines[i + 1].emphasis = Emphasis::kWarning;
  return lines;
}

std::string speed_text(const RunView& run) {
  std::string result;
  if (run.samples_per_second > 0) result += "  " + text("%.0f samples/s", run.samples_per_second);
  if (run.minibatch_seconds > 0)
    result += (run.has_ended() ? "  steady " : "  ") + format_seconds(run.minibatch_seconds) +
              " a minibatch" +
              (run.predicted_minibatch_seconds > 0
                   ? " (predicted " + format_seconds(run.predicted_minibatch_seconds) + ")"
                   : "");
  return result;
}

std::string place_text(const RunView& run) {
  std::string result = "minibatch " + std::to_string(run.done);
  if (run.minibatches > 0) result += "/" + std::to_string(run.minibatches);
  result += "  epoch " + std::to_string(run.epoch + 1);
  if (run.evaluating) result += "  evaluates";
  if (std::isfinite(run.loss)) result += "  loss " + loss_text(run.loss);
  return result;
}

std::string left_text(const RunView& run) {
  if (run.has_ended()) return run.wall_seconds > 0 ? "  in " + format_seconds(run.wall_seconds) : "";
  if (run.minibatches <= run.done || run.minibatch_seconds <= 0) return "";
  return "  " + time_text(static_cast<double>(run.minibatches - run.done) * run.minibatch_seconds) + " left";
}

}  // namespace

std::vector<std::string> curve_lines(const std::vector<double>& values, int64_t height) {
  static const char* const kEighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double least = HUGE_VAL, most = -HUGE_VAL;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  if (least > most) return {};
  const std::string top = loss_text(most), bottom = loss_text(least);
  const size_t label = std::max(top.size(), bottom.size());
  std::vector<std::string> lines(static_cast<size_t>(height));
  for (int64_t row = 0; row < height; ++row) {
    const std::string& name = row == 0 ? top : row == height - 1 ? bottom : "";
    std::string& line = lines[static_cast<size_t>(row)];
    line = std::string(label - name.size(), ' ') + name + " ";
    for (const double value : values) {
      int64_t eighths = 0;  // of this cell; the smallest value is one eighth of the last line high
      if (std::isfinite(value)) {
        const double part = most > least ? (value - least) / (most - least) : 0;
        const auto all = 1 + std::llround(part * static_cast<double>(8 * height - 1));
        eighths = std::clamp<int64_t>(all - 8 * (height - 1 - row), 0, 8);
      }
      line += kEighths[eighths];
    }
    line.resize(line.find_last_not_of(' ') + 1);
  }
  return lines;
}

std::string title_text(const RunView& run) {
  std::string result = run.folder + ": " + phase_text(run.phase);
  if (!run.model.empty()) result += "  " + run.model;
  if (!run.plan.empty()) result += "  plan " + run.plan;
  return result;
}

std::string progress_text(const RunView& run) {
  if (run.done == 0 && !run.has_ended()) return "";
  std::string result = place_text(run) + speed_text(run) + left_text(run);
  double least = 2, most = -1;
  for (const RankView& rank : run.ranks) {
    if (!rank.waiting) continue;
    least = std::min(least, *rank.waiting);
    most = std::max(most, *rank.waiting);
  }
  if (run.ranks.size() > 1 && most >= 0)
    result += "  ranks wait " + text("%.0f", 100 * least) + " to " + text("%.0f %% of the time", 100 * most);
  return result;
}

std::vector<ViewLine> screen_lines(const RunView& run, int64_t width, int64_t height) {
  std::vector<ViewLine> lines;
  lines.push_back({cut(title_text(run), width), emphasis_of(run.phase)});
  lines.push_back({cut(place_text(run) + speed_text(run) + left_text(run), width), Emphasis::kHeading});
  if (std::isfinite(run.learning_rate) && !run.has_ended())
    lines.back().text = cut(lines.back().text + text("  rate %.3g", run.learning_rate), width);
  if (!run.why.empty()) lines.push_back({cut(run.why, width), emphasis_of(run.phase)});
  int64_t room = height - static_cast<int64_t>(lines.size());
  const auto all = static_cast<int64_t>(run.ranks.size());

  // Two ranks with their head have room; then the curve, the changes, the other ranks.
  int64_t ranks = std::min(all, kLeastRanks);
  room -= all > 0 ? ranks + 1 : 0;
  std::vector<std::string> curve;
  if (room >= kCurveHeight) {
    const int64_t label = 8, columns = (width == kAnyWidth ? kUsualWidth : width) - label;
    if (columns > 0) curve = curve_lines(run.losses.points(static_cast<size_t>(columns)), kCurveHeight);
    room -= static_cast<int64_t>(curve.size());
  }
  int64_t events =
      std::min<int64_t>({static_cast<int64_t>(run.events.size()), kShownEvents, std::max<int64_t>(room, 0)});
  const int64_t others = all - ranks;
  if (others > 0 && events + others > room)
    events = std::min<int64_t>(events, std::max<int64_t>(room - others, 1));
  room -= events;
  if (others > 0) {
    const bool fit = others <= room;
    ranks += fit ? others : std::max<int64_t>(room - 1, 0);
  }
  if (all > 0) {
    for (ViewLine& line : rank_lines(run, static_cast<size_t>(ranks), width))
      lines.push_back(std::move(line));
    if (ranks < all) lines.push_back({cut("and " + std::to_string(all - ranks) + " further ranks", width)});
  }
  for (std::string& line : curve) lines.push_back({cut(line, width)});
  for (size_t i = run.events.size() - static_cast<size_t>(std::max<int64_t>(events, 0));
       i < run.events.size(); ++i)
    lines.push_back({cut(run.events[i], width)});
  if (static_cast<int64_t>(lines.size()) > height) lines.resize(static_cast<size_t>(height));
  for (ViewLine& line : lines) line.text = printable(line.text);
  return lines;
}

}  // namespace pipewright
