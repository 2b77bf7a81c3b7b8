// AD-PSGD: two pipelines meet at a stage at any time and average the weights that they have published there
// (docs/semantics.md, "Asynchronous pairs"). Every other pipeline is active and asks, the others are passive
// and answer at once, whatever they are doing: nobody who answers waits, so nobody waits in a circle.
#pragma once

#include <cstdint>
#include <vector>

namespace pipewright {

/// Updates are those of the pipeline at the stage, in the span.
struct WeightMeeting {
  int64_t active = 0, passive = 1;  ///< pipelines
  int64_t published = 0;            ///< what the active one has asked with, after so many updates
  int64_t added = 0;  ///< the change came to its weights after so many; one more than it makes: at the drain
  int64_t met = 0;    ///< the passive one had made so many when it answered
  int64_t turn = 0;   ///< meetings of the passive one in the span before
  bool operator==(const WeightMeeting&) const = default;
};

/// Who meets whom at a stage.
struct MeetingPartners {
  uint64_t seed = 0;  ///< of the run
  int64_t stage = 0;
  int64_t pipelines = 2;

  static bool is_active(int64_t pipeline) { return pipeline % 2 == 0; }
  std::vector<int64_t> active() const;
  std::vector<int64_t> passive() const;
  /// The passive one that an active pipeline asks with what it has after so many updates of the span that
  /// begins with the minibatch `span`: any of them, drawn.
  int64_t drawn(int64_t pipeline, int64_t span, int64_t updates) const;
};

}  // namespace pipewright
