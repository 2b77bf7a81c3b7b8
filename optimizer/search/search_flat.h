// Fewest devices for a period, on one level of equal devices. For the search's own files.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/search/search.h"

namespace pipewright::search_detail {

/// Answers for one problem and any number of periods. Borrows the problem.
class FewestDevices {
 public:
  explicit FewestDevices(const Problem& problem);

  /// A plan of the fewest devices whose stages are all within the period; nothing if there is none.
  std::optional<Solution> within(double period);

  /// Of the plans of fewest devices the one that search.h promises, with the periods of its stages in parts
  /// of `levels_of`. The table of within(period) must have been made last.
  Solution best_of_fewest(double period, double levels_of) const;

 private:
  static constexpr int64_t kImpossible = int64_t{1} << 40;
  static constexpr int kBlock = 64;

  struct Way {
    int next = -1;
    int rest = 0;  // table that it continues in
    int64_t replicas = 0;
  };
  int64_t& fewest(int table, int i) { return fewest_[static_cast<size_t>(table) * size_ + i]; }
  int64_t fewest(int table, int i) const { return fewest_[static_cast<size_t>(table) * size_ + i]; }
  /// What the stage i..j costs its replicas more than its work, at least, if it needs two; in devices.
  double extra_devices(int i, double work, double exchange) const;
  void extend(int i);
  void try_stage(int i, int j);
  /// fewest_replicas(), with the sums at hand; where placements are left open no more than the least of any.
  int64_t replicas_alone(int i, int j, int64_t least, int64_t most, int64_t after) const;
  int64_t replicas_of(int i, int j, int64_t least, int64_t most, int64_t after) const;

  Problem q_;  // a copy: depths may follow the period
  const States& states_;
  int size_ = 0;
  int tables_ = 1;
  double period_ = 0;
  double per_period_ = 0;
  /// By state, in seconds of one device: work and exchange before it, what its cut takes on a link.
  std::vector<double> work_;
  std::vector<double> exchange_;
  std::vector<double> link_in_;
  std::vector<double> link_out_;
  double latency_ = 0;  ///< of an exchange
  bool link_takes_both_ = true;
  std::vector<double> block_exchange_;  ///< least of each block of states
  std::vector<double> block_work_;
  /// For the period of the table: fewest devices by table and state; what they are more than the work
  /// behind it shared out; the least of that by block.
  std::vector<int64_t> fewest_;
  std::vector<Way> ways_;
  std::vector<double> waste_;
  std::vector<double> block_waste_;
};

}  // namespace pipewright::search_detail
