// What holds simulated pipelines together: a class for each row of graph/sync_rules.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "runtime/side_by_side/group_scheduler.h"
#include "runtime/side_by_side/simulate_pipelines.h"

namespace pipewright {

/// Calls come in the order of time.
class PipelineTies {
 public:
  virtual ~PipelineTies() = default;
  /// The pipeline begins the last backward before an update at the stage.
  virtual void begins_last_backward(int64_t /*stage*/, int64_t /*pipeline*/, double /*now_seconds*/) {}
  /// It has made the update of a round there. Whether it goes on at once; if not, `resume` is called, then or
  /// later.
  virtual bool has_updated(int64_t stage, int64_t pipeline, int64_t round, double now_seconds) = 0;
  /// It makes no more updates there.
  virtual void leaves(int64_t /*stage*/, int64_t /*pipeline*/, double /*now_seconds*/) {}
  /// When expire() will do something if nobody comes.
  virtual std::optional<double> deadline_seconds() const { return std::nullopt; }
  virtual void expire(double /*now_seconds*/) {}
  virtual GroupStatistics statistics() const { return {}; }
};

/// `resume`: a pipeline goes on at a stage at a time, which is not past. Borrows `what`.
using ResumePipeline = std::function<void(int64_t stage, int64_t pipeline, double seconds)>;
std::unique_ptr<PipelineTies> make_ties(const PipelinesToSimulate& what, ResumePipeline resume);

}  // namespace pipewright
