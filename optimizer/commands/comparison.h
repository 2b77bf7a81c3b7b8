// Every way to run a model on the devices given, side by side, with advice; and where another way would win.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/text_table.h"
#include "optimizer/commands/convergence.h"
#include "optimizer/commands/options.h"
#include "optimizer/plan/updates.h"

namespace pipewright {

struct Contender {
  std::string name;  ///< "one device", "dp", ..., "flush", "interleaved", "zb-h1", "2bw"
  std::string file;  ///< name of its plan's file
  std::optional<Plan> plan;
  PlanNotes notes;            ///< of the search for it
  std::string why_not;        ///< where there is no plan
  bool lacks_memory = false;  ///< that is why not
  int64_t needed_bytes = 0;   ///< then: of a device, with which there is one; 0: not known
  bool refused = false;       ///< why not is that what is asked for is wrong, or does not go with it
  /// Convergence::samples_ratio(); nothing without a table too.
  std::optional<double> samples_ratio;
};

/// Where, other links being faster or slower by one factor, another kind of plan is best.
struct Turn {
  /// Of each level's links that anything passes, from the inside out; the last, in bits, has two digits.
  /// There compare() advises just this kind.
  std::vector<double> bytes_per_second;
  int64_t group = 0;    ///< devices of a group of the last level; 0: there is one level
  bool of_two = false;  ///< levels: the groups are hosts
  bool below = false;   ///< wins below this bandwidth; otherwise above
  /// How much less time it takes, as a part, than the best that is known of what it takes over from: the most
  /// up to four times as far. Below a percent they are equal for all that prices know.
  double gain = 0;
  std::string kind;  ///< "data parallelism", ...
  std::string shape;
};

struct Comparison {
  std::string model;
  int64_t devices = 0;
  double one_device_seconds = 0;
  std::vector<Contender> contenders;
  size_t best = 0;          ///< in contenders
  std::vector<Turn> turns;  ///< the nearest one to each side, within a factor of 64, of the same ways
  bool turns_sought = false;
  std::string advice;       ///< one or two sentences
  std::string ties;         ///< which cuts tied parameters forbid in some rows; "" if none
  std::string convergence;  ///< what was trained for its table; "" without one
};

/// Like with like: plans whose updates cover a given number of minibatches (flush, interleaved, zb-h1, 2bw)
/// have as many samples in one as data parallelism on these devices, unless `samples_per_update` (0: as many)
/// or
/// --microbatches says otherwise. InfeasibleError if nothing fits. A plan is advised over one before it in
/// the rows only for more than a percent. `convergence` may be null.
Comparison compare(const Inputs& inputs, int64_t samples_per_update = 0,
                   const Convergence* convergence = nullptr);
/// The best plan for each of several weight rules, like with like as above, on the schedule asked for, or
/// where that does not go with the rule on one that drains; its best the one that is fastest, to the same
/// loss where the table knows that of any. InputError for an unknown rule, or one that is there twice.
Comparison compare_weights(const Inputs& inputs, const std::vector<std::string>& weights,
                           const Convergence* convergence);

/// Seconds of one minibatch on one device, without any exchange.
double one_device_seconds(const Inputs& inputs);

Json comparison_json(const Comparison& comparison);
/// By the suffix of `file`: Markdown (.md) or one self-contained HTML page (.html). InputError for another.
std::string comparison_report(const Comparison& comparison, const Inputs& inputs, const std::string& file);
void check_comparison_suffix(const std::string& file);
/// The table that all forms show.
TextTable comparison_table(const Comparison& comparison, const Inputs& inputs);
std::string turn_text(const Turn& turn);

}  // namespace pipewright
