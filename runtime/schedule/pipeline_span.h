// What one of the pipelines side by side trains of a span of the run, and how it counts it by itself. The
// only pipeline of a run trains all and counts as the run does.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/schedule/shape.h"
#include "runtime/schedule/side_by_side.h"

namespace pipewright {

/// All but end() from any thread.
class PipelineSpan {
 public:
  explicit PipelineSpan(Span of_run) : of_run_(of_run) {}
  virtual ~PipelineSpan() = default;

  const Span& of_run() const { return of_run_; }
  /// Minibatches are handed out on the way.
  virtual bool is_shared() const { return false; }
  /// As the pipeline counts. Where minibatches are handed out on the way: all that it could get, until it is
  /// known that it gets fewer.
  virtual Span own() const = 0;
  /// The run's number of the pipeline's minibatch `own`, of own(); nothing: the pipeline does not get so
  /// many.
  virtual std::optional<int64_t> to_run(int64_t own) const = 0;
  /// Of a minibatch that to_run() has given.
  virtual int64_t to_own(int64_t of_run) const = 0;
  /// Its own number of the first one that does not come before a minibatch of the run.
  virtual int64_t before(int64_t of_run) const = 0;
  /// The span ends before minibatch n of the run, earlier than it was to: all before it is trained.
  void end(int64_t n) { of_run_.count = n - of_run_.first; }

 private:
  Span of_run_;
};

/// Minibatches in turn: known beforehand.
class TurnSpan : public PipelineSpan {
 public:
  TurnSpan(Span of_run, PipelineTurn turn) : PipelineSpan(of_run), turn_(turn) {}
  Span own() const override { return turn_.own(of_run()); }
  std::optional<int64_t> to_run(int64_t own) const override { return turn_.to_run(own); }
  int64_t to_own(int64_t of_run) const override { return turn_.to_own(of_run); }
  int64_t before(int64_t of_run) const override { return turn_.before(of_run); }

 private:
  const PipelineTurn turn_;
};

/// Hands a span's minibatches out to pipelines that ask for more, so that a fast one trains more of them.
class MinibatchSource {
 public:
  virtual ~MinibatchSource() = default;
  /// Part `number` (0, 1, ...) of what the pipeline trains of the span: minibatches of one update, [j, j + 1)
  /// * `interval` but for the span's ends. All who ask for it hear the same. None: nothing is left. Any
  /// thread; may wait for an answer, and throws what ends the job meanwhile.
  virtual Span part(Span span, int64_t interval, int64_t pipeline, int64_t number) = 0;
};

/// Minibatches as they are handed out. The pipeline counts those of a span from 0, or so that its updates end
/// at multiples of the interval, as the run's would: only its first and its last update may be of fewer.
class SharedSpan : public PipelineSpan {
 public:
  /// Waits for the first part. Borrows the source.
  SharedSpan(Span of_run, int64_t interval, int64_t pipeline, MinibatchSource& source);
  bool is_shared() const override { return true; }
  Span own() const override;
  std::optional<int64_t> to_run(int64_t own) const override;
  int64_t to_own(int64_t of_run) const override;
  int64_t before(int64_t of_run) const override;

 private:
  const Span& part(int64_t number) const;

  const Span whole_;  // of the run, as it was to be
  const int64_t interval_, pipeline_;
  MinibatchSource& source_;
  mutable std::mutex mutex_;         // of what follows
  mutable std::vector<Span> parts_;  // that were asked for; the last may be none
};

}  // namespace pipewright
