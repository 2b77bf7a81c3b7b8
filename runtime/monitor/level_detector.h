// Has a quantity that used to stand at one level moved to another, and stayed there? For how long a rank
// computes on a minibatch: interference, and its end.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace pipewright {

struct DetectorSettings {
  int64_t window = 5;     ///< samples of which one counts, the lower quartile
  int64_t confirm = 3;    ///< windows in a row, on the same side, that make a change
  int64_t learn = 4;      ///< windows from which a level is learned, at first and after restart()
  double least = 1.2;     ///< no smaller factor is a change, up or down
  double deviations = 5;  ///< nor one within so many standard deviations of the quartiles seen at the level
  /// On a machine whose times go up and down all the while, a step is one all the same where so many windows
  /// in a row lie beyond all that are remembered, of `least_known` or more, and by a tenth at that.
  int64_t beyond = 6;
  int64_t least_known = 10;
  int64_t cool_down = 2;  ///< windows after a change that are not looked at: what it stirred up settles
};

/// The level moved.
struct LevelChange {
  int64_t first = 0;  ///< index of the first sample at the new level, as far as windows tell
  int64_t found = 0;  ///< index of the sample with which it was found
  double before = 0, after = 0;
  double factor() const { return after / before; }
};

/// Fed with one sample after the other. Lower quartiles of windows make it blind to single samples that took
/// longer; a change must be large against the spread of the quartiles themselves, so that noise of any size,
/// as long as it stays as it is, is no change; and the new level must hold for `confirm` windows. The level
/// found then is the new baseline: a step is found once, going back is found once more. While nothing is
/// found the level is the median of the last 64 quartiles: how it begins (with cold caches, a clock that
/// rises) is forgotten, and is no spread.
class LevelDetector {
 public:
  explicit LevelDetector(DetectorSettings settings = {}) : settings_(settings) {}

  /// `value` > 0. Sample indexes rise by one with each call.
  std::optional<LevelChange> add(double value);
  /// The baseline is no longer known: it is learned again. Indexes go on.
  void restart();
  /// The baseline from now on, without learning: what another plan makes of a known level.
  void expect(double level);

  /// 0 while it is being learned.
  double level() const { return level_; }
  /// By what factor a window's quartile must differ from the level.
  double threshold() const;

 private:
  std::optional<LevelChange> judge(double low);
  std::optional<LevelChange> change(const std::vector<double>& lows);
  bool is_beyond(double low) const;
  void settle(double low);
  void note(double low);
  void move_to(double level);

  DetectorSettings settings_;
  int64_t samples_ = 0;
  std::vector<double> window_;   // samples not yet judged
  std::vector<double> learned_;  // quartiles while the level is learned, or settles after a change
  double level_ = 0;
  std::vector<double> recent_;      // the last quartiles at the level, which is their median
  std::vector<double> candidates_;  // quartiles beyond the threshold, in a row
  std::vector<double> beyond_;      // quartiles beyond all that are remembered, in a row
  int64_t settling_ = 0;            // quartiles still to be learned from after a change
  int64_t resting_ = 0;             // windows that are still not looked at
};

}  // namespace pipewright
