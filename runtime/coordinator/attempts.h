// What a launcher does with the processes of a job when ranks are lost: a state machine without clock, socket,
// file or thread. The launcher tells it what has happened and carries out what it says (runtime/launch/).
//
// An attempt is one start of all ranks. It begins with the newest state that was kept (docs/recovery.md), so
// that whatever an attempt had done beyond that state is done again by the next one, bit for bit alike where
// the plan stays the same. No process takes part in two attempts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace pipewright {

enum class OnLoss {
  kEnd,       ///< the job ends
  kRestart,   ///< the next attempt has as many ranks
  kContinue,  ///< the next attempt has the ranks that are left
};

struct AttemptRules {
  OnLoss on_loss = OnLoss::kEnd;
  int64_t ranks = 1;           ///< of the job's plan
  int64_t fewest = 1;          ///< kContinue: with fewer slots the job ends
  int64_t most_fruitless = 3;  ///< so many attempts in a row may be lost without newer kept state
};

/// A place where the process of one rank can run: a core, a GPU, a share of a host. Numbers are the launcher's.
using Slot = int64_t;

enum class Ending {
  kDone,      ///< it has trained to the end of the run
  kLost,      ///< killed, or its host has gone
  kFailed,    ///< an error of its own, which would come again: the job ends
  kFollowed,  ///< it ended because the attempt was ending
};

// What has happened.
struct SlotAdded {  ///< before the first attempt, or a rank's place that has come, or come back, since
  Slot slot = 0;
};
struct SlotGone {  ///< no process can be started there any more, until it is added again
  Slot slot = 0;
};
struct Begun {};  ///< all slots of the start are added
struct ProcessEnded {
  int64_t attempt = 0;
  Slot slot = 0;
  Ending how = Ending::kDone;
};
struct LossAnnounced {  ///< ranks of the attempt miss one: it is stopped, or cut off
  int64_t attempt = 0;
  std::optional<Slot> slot;  ///< whose; nothing: a connection broke, nobody knows why
};
struct StateKept {  ///< the job can go on from this minibatch
  int64_t minibatch = 0;
};
struct Interrupted {};  ///< the launcher got a signal
using LauncherEvent =
    std::variant<SlotAdded, SlotGone, Begun, ProcessEnded, LossAnnounced, StateKept, Interrupted>;

// What the launcher is to do.
struct StartAttempt {
  int64_t attempt = 0;      ///< from 0
  std::vector<Slot> slots;  ///< by rank
};
struct StopAttempt {
  int64_t attempt = 0;
  bool drain = false;  ///< its ranks are to leave a checkpoint first; otherwise they are killed
};
enum class Outcome { kDone, kFailed, kLost, kInterrupted };
struct EndJob {
  Outcome outcome = Outcome::kDone;
  std::string reason;  ///< of kLost: what is missing to go on; else ""
};
using LauncherCommand = std::variant<StartAttempt, StopAttempt, EndJob>;

class Attempts {
 public:
  explicit Attempts(AttemptRules rules);
  /// What follows from the event, in this order. Events of an attempt that is over, doubled ones, and any
  /// behind EndJob, have no effect.
  std::vector<LauncherCommand> take(const LauncherEvent& event);
  int64_t attempt() const;  ///< the last that was started; -1: none
  bool ended() const;       ///< EndJob was said
};

}  // namespace pipewright
