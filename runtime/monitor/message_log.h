// What a rank tells rank 0 of its messages: when it sent, asked for and got some of them. Which ones, sender
// and receiver find alike without asking each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// One end of a message, by the clock of its rank's host, in seconds since 1970.
struct MessageEnd {
  bool is_gradient = false;
  bool is_sender = false;
  int64_t sender_stage = 0;  ///< with the two above and the minibatch it names the message
  int64_t minibatch = 0;     ///< of the run
  double began_seconds = 0;  ///< the sender to send it, the receiver to wait for it
  double ended_seconds = 0;  ///< the receiver has it; of no meaning at the sender
};

/// The ends that a rank has noted under one plan.
struct MessageLog {
  int64_t generation = 0;
  std::string clock;  ///< ranks of equal names read the same clock
  std::vector<MessageEnd> ends;
};

/// The name of this host's clock.
std::string clock_of_host();

/// The end of a message that an action of a rank whose first stage is `first_stage` is; the action is RA, SA,
/// RG or SG.
MessageEnd message_end(const Action& action, int64_t first_stage);

/// Which minibatches' messages are noted: all of them, or where minibatches are short one of 2, 4, 8 ...,
/// about one in kSampleSeconds. Those of a larger step are among those of each smaller one, so ranks that
/// differ about the step agree on most.
class MessageSampler {
 public:
  static constexpr double kSampleSeconds = 0.04;

  bool takes(int64_t minibatch) const;
  /// The rank has had `messages` of one kind in `seconds`, all noted or not.
  void adjust(int64_t messages, double seconds);
  int64_t step() const { return step_; }

 private:
  int64_t step_ = 1;
};

}  // namespace pipewright
