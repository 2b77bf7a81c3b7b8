// What a run folder tells of its run, looked at again and again. Reads only, and holds no lock.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "graph/live_status.h"
#include "graph/plan.h"
#include "graph/run.h"
#include "graph/summary.h"
#include "runtime/watch/file_tail.h"
#include "runtime/watch/run_view.h"

namespace pipewright {

class RunReader {
 public:
  explicit RunReader(std::filesystem::path folder);

  /// The folder as it is now. What is not there, or cannot be read, is left out. Of a long metrics.jsonl so
  /// much is read at a time; is_behind() until the end has come.
  const RunView& look();
  bool is_behind() const { return behind_; }

 private:
  using Clock = std::chrono::steady_clock;

  void forget();
  void read_metrics();
  void take_line(const std::string& line);
  void take_minibatch(const Json& json);
  void take_evaluation(const Json& evaluation);
  void take_slowdown(const Json& change, const std::string& who, const std::string& of);
  void tell(const std::string& event);
  void read_plan();
  void read_live();
  RunView::Phase phase_now();
  void find_out_why();
  void show_live_ranks();
  void show_summary();
  void show_speed();
  std::vector<int64_t> stages_of(int64_t rank) const;
  double share_of(int64_t rank) const;

  const std::filesystem::path folder_;
  FileTail metrics_;
  bool behind_ = false;
  RunView view_;
  bool seen_running_ = false;

  std::optional<Run> run_;
  std::optional<Plan> plan_;
  std::string plan_file_;
  std::filesystem::file_time_type plan_time_{};
  std::optional<LiveStatus> live_;
  Clock::time_point live_since_{};  // it has stood as it is
  std::optional<Summary> summary_;

  // Of metrics.jsonl.
  struct Minibatch {
    double elapsed_seconds = 0, loss = 0, samples = 0;
  };
  std::deque<Minibatch> last_;  // minibatches
  std::string generation_plan_ = "plan.json";
  std::map<int64_t, double> slowdowns_;

  // What ranks said in the last seconds.
  std::map<int64_t, std::deque<LiveRank>> heard_;
};

}  // namespace pipewright
