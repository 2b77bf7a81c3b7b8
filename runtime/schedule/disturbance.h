// Disturbances: ranks that compute more slowly than they could, and links on which messages take longer, at
// known minibatches and always the same ones. A run waits so long where it computes (and says that this was
// injected), or holds the message back; a simulation counts the same seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

/// Who does what, when.
struct DisturbedAction {
  int64_t rank = 0;
  int64_t replica = 0;  ///< in its stage: the pipeline, where all stages have as many
  Action action;
  double seconds = 0;      ///< that it takes by itself
  double now_seconds = 0;  ///< since training began, when it begins
};

/// An activation or a gradient on its way to another rank.
struct DisturbedMessage {
  int64_t sender = 0, receiver = 0;
  int64_t minibatch = 0;
};

/// One kind of slowness. The same answer for the same question, on every rank and in every run.
class Disturbance {
 public:
  virtual ~Disturbance() = default;
  /// What a forward or a backward (BI, BW) takes longer; never negative.
  virtual double extra_seconds(const DisturbedAction&) const { return 0; }
  /// What it takes longer before anything else does, which is then as if it took so long by itself.
  virtual double compute_seconds(const DisturbedAction&) const { return 0; }
  /// What a message occupies its link longer; never negative. Its sender does not wait.
  virtual double message_seconds(const DisturbedMessage&) const { return 0; }
  virtual bool slows_links() const { return false; }
  /// PlanError for a rank or a pipeline that the plan has not.
  virtual void check(const Plan& plan) const = 0;
};

class SpecOptions;

/// A row of the table behind --disturb.
struct DisturbanceRow {
  const char* name;
  std::unique_ptr<Disturbance> (*make)(SpecOptions& options);
  const char* summary;
};
const std::vector<DisturbanceRow>& disturbance_rows();

class Disturbances {
 public:
  Disturbances() = default;
  /// SPECs such as "fixed:rank=2,factor=3" (docs/disturbances.md). InputError, with the nearest name.
  explicit Disturbances(const std::vector<std::string>& specs);

  bool empty() const { return all_.empty(); }
  void check(const Plan& plan) const;
  /// Of all together. 0 for what does not compute and for updates.
  double extra_seconds(const DisturbedAction& what) const;
  double message_seconds(const DisturbedMessage& what) const;
  bool slows_links() const;

 private:
  std::vector<std::shared_ptr<const Disturbance>> all_;
};

}  // namespace pipewright
