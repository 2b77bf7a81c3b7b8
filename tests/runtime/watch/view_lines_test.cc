// How a run looks, in lines.
#include "runtime/watch/view_lines.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "graph/text_table.h"

using namespace pipewright;
using Catch::Matchers::Contains;

namespace {

RunView running(int64_t ranks) {
  RunView run;
  run.phase = RunView::Phase::kRunning;
  run.folder = "runs/a";
  run.model = "mlp";
  run.plan = "1-1, 1f1b, stash";
  run.done = 118;
  run.minibatches = 400;
  run.epoch = 1;
  run.loss = 0.53125;
  run.learning_rate = 0.01;
  run.samples_per_second = 1234;
  run.minibatch_seconds = 0.05;
  run.predicted_minibatch_seconds = 0.04;
  for (int64_t minibatch = 0; minibatch < 118; ++minibatch)
    run.losses.add(minibatch, 2 - 0.01 * static_cast<double>(minibatch));
  for (int event = 0; event < 9; ++event) run.events.push_back("event " + std::to_string(event));
  run.told_events = 9;
  for (int64_t number = 0; number < ranks; ++number) {
    RankView rank;
    rank.rank = number;
    rank.stages = {number};
    rank.operation = "receive activation of minibatch 117";
    rank.minibatch = 117;
    rank.samples_per_second = 1200;
    rank.waiting = 0.03 + 0.38 * static_cast<double>(number % 2);
    rank.memory_bytes = 50 << 20;
    rank.predicted_memory_bytes = 60 << 20;
    run.ranks.push_back(rank);
  }
  return run;
}

std::string joined_text(const std::vector<ViewLine>& lines) {
  std::string text;
  for (const ViewLine& line : lines) text += line.text + "\n";
  return text;
}

}  // namespace

TEST_CASE("watch: a screen says where the run is, what each rank does, the loss and what changed last") {
  RunView run = running(2);
  run.ranks[1].operation_seconds = 12.3;
  run.ranks[1].slowdown = 2.14;
  run.ranks[0].operation.clear();
  const std::vector<ViewLine> lines = screen_lines(run, kAnyWidth, 24);
  const std::string text = joined_text(lines);
  INFO(text);
  CHECK(lines[0].text == "runs/a: runs  mlp  plan 1-1, 1f1b, stash");
  CHECK(lines[1].text ==
        "minibatch 118/400  epoch 2  loss 0.5312  1234 samples/s  50 ms a minibatch (predicted 40 ms)  0:14 "
        "left"
        "  rate 0.01");
  CHECK(lines[2].emphasis == Emphasis::kHeading);
  CHECK_THAT(lines[3].text, Contains("between two operations") && Contains("117") && Contains("3 %"));
  CHECK_THAT(lines[4].text, Contains("receive activation of minibatch 117 since 12 s") && Contains("41 %") &&
                                Contains("50 MiB (60 MiB)") && Contains("2.1"));
  CHECK(lines[3].emphasis == Emphasis::kNone);
  CHECK(lines[4].emphasis == Emphasis::kWarning);
  CHECK_THAT(text, Contains("2.0000 █") && Contains("event 8") && !Contains("event 2\n"));
  CHECK(text.find('\033') == std::string::npos);
}

TEST_CASE("watch: a screen is as wide and as high as the terminal, whatever that is") {
  for (const int64_t ranks : {0, 1, 2, 7, 64})
    for (int64_t width = 20; width < 140; width += 7)
      for (int64_t height = 6; height < 40; ++height) {
        RunView run = running(ranks);
        if (height % 3 == 0) {
          run.phase = RunView::Phase::kFailed;
          run.why = "rank 1 was killed by signal 9 (Killed)";
        }
        const std::vector<ViewLine> lines = screen_lines(run, width, height);
        INFO(ranks << " ranks, " << width << " x " << height << "\n" << joined_text(lines));
        CHECK(static_cast<int64_t>(lines.size()) <= height);
        CHECK(std::all_of(lines.begin(), lines.end(),
                          [&](const ViewLine& line) { return characters_of(line.text) <= width; }));
      }
  const std::string few = joined_text(screen_lines(running(64), 100, 20));
  CHECK_THAT(few, Contains("further ranks"));
}

TEST_CASE("watch: a name with escape sequences in it does not reach the terminal as such") {
  RunView run = running(1);
  run.model = "mlp\033[2J";
  CHECK_THAT(screen_lines(run, kAnyWidth, 24)[0].text, Contains("\\x1b[2J"));
}

TEST_CASE("watch: the line of a run that goes on, and of one that has ended") {
  RunView run = running(2);
  CHECK(progress_text(run) ==
        "minibatch 118/400  epoch 2  loss 0.5312  1234 samples/s  50 ms a minibatch (predicted 40 ms)  0:14 "
        "left  "
        "ranks wait 3 to 41 % of the time");
  run.evaluating = true;
  CHECK_THAT(progress_text(run), Contains("epoch 2  evaluates  loss"));
  RunView nothing;
  nothing.phase = RunView::Phase::kRunning;
  CHECK(progress_text(nothing).empty());
  run = running(1);
  run.phase = RunView::Phase::kDone;
  run.done = 400;
  run.wall_seconds = 21;
  CHECK(progress_text(run) ==
        "minibatch 400/400  epoch 2  loss 0.5312  1234 samples/s  steady 50 ms a minibatch (predicted 40 ms) "
        " in "
        "21 s");
}

TEST_CASE("watch: a curve is drawn in eighths of a line, with a gap for what is not finite") {
  CHECK(curve_lines({}, 3).empty());
  CHECK(curve_lines({std::nan("")}, 3).empty());
  CHECK(curve_lines({2, 1, std::nan(""), 0}, 2) == std::vector<std::string>{"2.0000 █▁", "0.0000 ██ ▁"});
  CHECK(curve_lines({1, 1}, 1) == std::vector<std::string>{"1.0000 ▁▁"});
}
