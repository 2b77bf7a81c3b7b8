#include "runtime/serial/serial_waves.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

namespace pipewright {

SerialWaves::SerialWaves(const Plan& plan, int64_t interval, const TrainingRules& rules, size_t pipelines)
    : distance_(hetpipe_rules(rules.sync).distance),
      wave_updates_(hetpipe_rules(rules.sync).wave_updates),
      pipelines_(pipelines) {
  if (wave_updates_ > 0) return;
  for (int64_t minibatches = 0; minibatches < plan.stages[0].in_flight; minibatches += interval)
    ++wave_updates_;
}

void SerialWaves::begin(SerialPipelines& pipelines, Span) {
  stages_.clear();
  for (size_t s = 0; s < pipelines[0]->stage_count(); ++s) {
    StageWaves& stage = stages_.emplace_back();
    stage.global.push_back(pipelines[0]->stage(s).trained());
    int64_t most = 0;
    for (const auto& pipeline : pipelines) {
      const SerialStage& own = pipeline->stage(s);
      std::set<int64_t> rounds;
      for (int64_t k = pipeline->span().first; k < pipeline->span().end(); ++k)
        rounds.insert(k / own.rule.round_length);
      stage.pipelines.push_back({own.trained(), {}, false, static_cast<int64_t>(rounds.size())});
      most = std::max(most, stage.pipelines.back().updates);
    }
    stage.waves = static_cast<size_t>((most + wave_updates_ - 1) / wave_updates_);
    for (size_t p = 0; p < pipelines_; ++p)
      if (stage.pipelines[p].updates == 0) end_last_waves(pipelines[p]->stage(s), stage, stage.pipelines[p]);
  }
}

void SerialWaves::updated(SerialPipelines& pipelines, size_t pipeline, size_t s) {
  const at::NoGradGuard no_grad;
  SerialStage& own = pipelines[pipeline]->stage(s);
  StageWaves& stage = stages_[s];
  PipelineWaves& updated = stage.pipelines[pipeline];
  const int64_t updates = own.latest_version() - own.first_version;
  const bool ends_wave = updates % wave_updates_ == 0;
  if (ends_wave) {
    end_wave(own, updated);
    updated.start = own.trained();  // until others are there: an empty wave may follow at once
    updated.waits = own.awaits_group = true;
  }
  if (updates == updated.updates) end_last_waves(own, stage, updated);
  sum_waves(stage);
  for (size_t p = 0; p < pipelines_; ++p) {
    PipelineWaves& waves = stage.pipelines[p];
    SerialStage& each = pipelines[p]->stage(s);
    const auto ended = (each.latest_version() - each.first_version) / wave_updates_;
    const int64_t of_all = ended - distance_;  // waves that it must have had of all
    if (!waves.waits || of_all >= static_cast<int64_t>(stage.global.size())) continue;
    if (of_all > 0) {
      Tensors weights = stage.global[static_cast<size_t>(of_all)];
      for (int64_t wave = of_all; wave < ended; ++wave)
        for (size_t i = 0; i < weights.size(); ++i)
          weights[i] = weights[i] + waves.changes[static_cast<size_t>(wave)][i];
      each.set_trained(weights);
    }
    waves.start = each.trained();
    waves.waits = each.awaits_group = false;
  }
}

void SerialWaves::end(SerialPipelines& pipelines) {
  const at::NoGradGuard no_grad;
  for (size_t s = 0; s < stages_.size(); ++s)
    for (const auto& pipeline : pipelines) pipeline->stage(s).set_trained(stages_[s].global.back());
}

void SerialWaves::end_wave(const SerialStage& stage, PipelineWaves& waves) const {
  Tensors change = stage.trained();
  for (size_t i = 0; i < change.size(); ++i) change[i] = change[i] - waves.start[i];
  waves.changes.push_back(std::move(change));
}

void SerialWaves::end_last_waves(const SerialStage& own, StageWaves& stage, PipelineWaves& waves) const {
  for (; waves.changes.size() < stage.waves; waves.start = own.trained()) end_wave(own, waves);
}

void SerialWaves::sum_waves(StageWaves& stage) const {
  for (size_t wave = stage.global.size() - 1;; ++wave) {
    for (const PipelineWaves& each : stage.pipelines)
      if (each.changes.size() <= wave) return;
    Tensors weights = stage.global.back();
    for (size_t i = 0; i < weights.size(); ++i) {
      at::Tensor sum = stage.pipelines[0].changes[wave][i];
      for (size_t p = 1; p < pipelines_; ++p) sum = sum + stage.pipelines[p].changes[wave][i];
      weights[i] = weights[i] + sum / static_cast<double>(pipelines_);
    }
    stage.global.push_back(std::move(weights));
  }
}

}  // namespace pipewright
