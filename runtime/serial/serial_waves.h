// Pipelines of the reference that add waves of updates to weights of all ("hetpipe").
#pragma once

#include <vector>

#include "runtime/serial/serial_ties.h"

namespace pipewright {

class SerialWaves : public SerialTies {
 public:
  /// Of `plan`, which has so many pipelines. `interval`: minibatches of a pipeline's update.
  SerialWaves(const Plan& plan, int64_t interval, const TrainingRules& rules, size_t pipelines);

  void begin(SerialPipelines& pipelines, Span span) override;
  void updated(SerialPipelines& pipelines, size_t pipeline, size_t s) override;
  void end(SerialPipelines& pipelines) override;

 private:
  struct PipelineWaves {
    Tensors start;                 ///< trained weights, of the wave under way
    std::vector<Tensors> changes;  ///< by wave of the span that it has ended
    bool waits = false;            ///< for others
    int64_t updates = 0;           ///< that the pipeline makes in the span
  };
  struct StageWaves {
    std::vector<Tensors> global;  ///< [j]: the trained weights with the waves before j of all pipelines
    std::vector<PipelineWaves> pipelines;
    size_t waves = 0;  ///< of the span: as many as the pipeline with most updates has
  };
  void end_wave(const SerialStage& stage, PipelineWaves& waves) const;
  void end_last_waves(const SerialStage& own, StageWaves& stage, PipelineWaves& waves) const;
  void sum_waves(StageWaves& stage) const;

  const int64_t distance_;
  int64_t wave_updates_;
  const size_t pipelines_;
  std::vector<StageWaves> stages_;
};

}  // namespace pipewright
