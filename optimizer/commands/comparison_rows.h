// The rows of a comparison: ways to run a model, each the best plan of its kind.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/commands/comparison.h"

namespace pipewright {

/// The rows that others are compared with.
inline constexpr const char* kOneDevice = "one device";
inline constexpr const char* kDataParallelism = "dp";

/// Less of another's time is not worth more devices, or an older way to run.
inline constexpr double kWorthwhile = 0.99;

inline double seconds(const Contender& contender) { return contender.plan->predicted->minibatch_seconds; }

/// A way to run the model that is compared with the others: what it changes in the problem that was asked.
struct ContenderRow {
  const char* name;
  const char* strategy;
  const char* schedule = nullptr;  ///< null: as asked
  const char* weights = nullptr;   ///< null: as asked; "": the usual rule of the schedule
  enum { kAsAsked, kNoInterval, kLikeDataParallelism } interval = kAsAsked;
  bool one_device = false;
  /// There for a problem that leaves schedule and rule open.
  bool where_open = false;
  /// Straight and hybrid pipelines are what `best` is about: it has more ways to a solution than either
  /// alone, and what it finds is the row's whose kind it is.
  enum { kAlone, kBest, kOfBest } part = kAlone;
  /// Of the few rows of which one is the best, or nearly: of those that drain zb-h1 hardly ever loses, and
  /// model parallelism is for want of memory alone.
  enum { kNotOfFew, kOfFew, kOfFewWhereMemoryEnds } of_few = kNotOfFew;
};
using Rows = std::vector<const ContenderRow*>;

/// Those that there are for the problem, in an order in which a later one must gain something; `few` that
/// stand for all, or nearly.
Rows rows_for(const Inputs& inputs, bool few);

/// The best plan of the row's kind. `minibatches`: of an update, where the schedule leaves that open. What
/// takes more than `most_seconds` need not be found.
Contender contender(const Inputs& inputs, const ContenderRow& row, int64_t minibatches,
                    double most_seconds = std::numeric_limits<double>::infinity());

/// The best plan with the weight rule, on the schedule asked for or, where that does not go with it, one that
/// drains. Updates of a given number of minibatches have as many as data parallelism makes.
Contender contender_of_weights(const Inputs& inputs, WeightRule weights);

/// Of all rows, in their order; the rows are planned side by side, on as many cores as there are.
std::vector<Contender> contenders_for(const Inputs& inputs, int64_t minibatches);

/// Whether it is to be taken over `best`, which stands before it in the rows. Newer weights are worth having
/// for nothing.
bool worth_more(const Contender& other, const Contender& best);
/// The one to take; nothing if none fits.
std::optional<size_t> advised(const std::vector<Contender>& contenders);

/// "data parallelism", "a hybrid pipeline", ...
std::string kind_of(const Plan& plan);

/// Whether the problem leaves schedule and weight rule as they are by default.
bool is_plain(const PlanRequest& request);

}  // namespace pipewright
