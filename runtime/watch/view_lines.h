// How a run looks: lines of text, as wide and as high as where they are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/watch/run_view.h"

namespace pipewright {

enum class Emphasis { kNone, kHeading, kGood, kWarning, kBad };

struct ViewLine {
  std::string text;  ///< UTF-8, without its end
  Emphasis emphasis = Emphasis::kNone;
};

/// What is going on, the ranks, the curve of the loss and what changed last, in lines of `width` characters
/// at most (kAnyWidth: as they come) and at most `height` of them, 6 or more: the curve and the last changes
/// give way first, then ranks, of which a line says how many are not shown.
std::vector<ViewLine> screen_lines(const RunView& run, int64_t width, int64_t height);

/// "minibatch 118/400  epoch 2  loss 0.5312  1234 samples/s  ranks wait 3 to 41 % of the time", or how it
/// ended. "": there is nothing to say.
std::string progress_text(const RunView& run);

/// "runs/a: runs  mlp  plan 1-1, 1f1b, stash"
std::string title_text(const RunView& run);

/// The values as a curve of block characters, `height` lines high, the first line holding the largest; what
/// is not finite leaves a gap. Labels of the largest and the smallest stand before it.
std::vector<std::string> curve_lines(const std::vector<double>& values, int64_t height);

}  // namespace pipewright
