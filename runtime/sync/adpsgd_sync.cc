#include <ATen/core/grad_mode.h>

#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "runtime/sync/flat_tensors.h"
#include "runtime/sync/replica_syncs.h"
#include "runtime/sync/weight_meetings.h"

namespace pipewright {
namespace {

using Tensors = std::vector<at::Tensor>;

class AdpsgdSync : public ReplicaSync {
 public:
  AdpsgdSync(Transport& transport, StageReplica& stage, ReplicaSyncSettings settings)
      : stage_(stage), groups_(settings.groups) {
    PW_CHECK(groups_, "stage " << stage.stage() << " has nobody to tell of meetings");
    WeightMeetingSettings own;
    own.ranks = settings.ranks;
    own.tag = settings.tags.of(Stream::kMeeting, stage.stage());
    own.replica = stage.replica();
    own.partners = {settings.seed, stage.stage(), static_cast<int64_t>(settings.ranks.size())};
    own.told = [this](const WeightMeeting& meeting) {
      groups_->tell(stage_.stage(), stage_.span().of_run().first, meeting);
    };
    const bool active = MeetingPartners::is_active(own.replica);
    meetings_ = active ? make_active_meetings(transport, std::move(own))
                       : make_passive_meetings(transport, std::move(own));
    drain_ = make_drain_sync(transport, stage, std::move(settings));
  }

  // Before the first update of a span.
  void complete(size_t) override { begin(); }

  int64_t after_update() override {
    const at::NoGradGuard no_grad;
    begin();
    if (const auto changed = meetings_->update(flat(), stage_.updates_of_span())) {
      const Tensors parts = unflatten(*changed, trained());
      stage_.set_trained_weights([&](size_t i) { return parts[i]; });
    }
    return meetings_->take_sent_bytes();
  }

  // Others may ask any of this rank's stages before they go on.
  void no_more_updates() override { begin(); }

  int64_t at_drain() override {
    const at::NoGradGuard no_grad;
    if (const auto changed = meetings_->end(flat(), stage_.updates_of_span())) {
      // Elsewhere: where they lie now they may still be written to a checkpoint.
      const Tensors parts = unflatten(*changed, trained());
      StageState state = stage_.state();
      for (size_t i = 0; i < parts.size(); ++i)
        state.weights[stage_.program().trainable()[i]] = parts[i].clone().to(stage_.device());
      stage_.replace(std::move(state));
    }
    begun_ = false;
    groups_->leave(stage_.stage(), stage_.replica());
    groups_->await_left(stage_.stage());
    return meetings_->take_sent_bytes() + drain_->at_drain();
  }

 private:
  void begin() {
    if (begun_) return;
    begun_ = true;
    meetings_->begin(flat(), stage_.span().of_run().first);
  }

  Tensors trained() const {
    Tensors weights;
    for (const size_t i : stage_.program().trainable()) weights.push_back(stage_.weights()[i].detach());
    return weights;
  }
  Tensors flat() const {
    const at::NoGradGuard no_grad;
    const MemoryScope scope(MemoryPurpose::kVersions);
    Tensors weights = trained();
    for (at::Tensor& weight : weights) weight = weight.cpu();
    return flatten(weights);
  }

  StageReplica& stage_;
  Groups* const groups_;
  std::unique_ptr<WeightMeetings> meetings_;
  std::unique_ptr<ReplicaSync> drain_;
  bool begun_ = false;  // the span
};

}  // namespace

std::unique_ptr<ReplicaSync> make_adpsgd_sync(Transport& transport, StageReplica& stage,
                                              ReplicaSyncSettings settings) {
  return std::make_unique<AdpsgdSync>(transport, stage, std::move(settings));
}

}  // namespace pipewright
