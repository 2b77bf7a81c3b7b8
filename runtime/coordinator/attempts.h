// What a launcher does with the processes of a job when ranks are lost: a state machine without clock,
// socket, file or thread. The launcher tells it what has happened and carries out what it says
// (runtime/launch/).
//
// An attempt is one start of all ranks. It begins with the newest state that was kept (docs/recovery.md), so
// that whatever an attempt had done beyond that state is done again by the next one, bit for bit alike where
// the plan stays the same. No process takes part in two attempts.
//
// The machine waits for nothing but the ends of an attempt's processes. So the launcher says of every one
// that it has ended, also where it could not be started, cannot be reached any more, or does not end when it
// is asked to: that one is killed after a time.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace pipewright {

enum class OnLoss {
  kEnd,       ///< the job ends
  kRestart,   ///< the next attempt has as many ranks
  kContinue,  ///< the next attempt has the ranks that are left, and those that have come since
};

struct AttemptRules {
  OnLoss on_loss = OnLoss::kEnd;
  int64_t ranks = 1;           ///< of the job's plan
  int64_t fewest = 1;          ///< kContinue: with fewer slots the job ends; at most `ranks`
  int64_t most_fruitless = 3;  ///< so many attempts in a row without newer kept state, all lost, end the job
};

/// A place where the process of one rank can run, a core or a GPU of a host, by the launcher's number.
using Slot = int64_t;

enum class Ending {
  kDone,      ///< it has trained to the end of the run
  kLost,      ///< killed, or its host has gone
  kFailed,    ///< an error of its own, which would come again: the job ends. Behind a kill: kFollowed
  kFollowed,  ///< it ended because the attempt was ending: drained, interrupted, or another rank is missing
};

// What has happened.

/// Before the first attempt, or a rank's place that has come, or come back, since. Without effect on a slot
/// that is there: one whose process is lost comes back only behind its loss.
struct SlotAdded {
  Slot slot = 0;
};
/// No process can be started there any more, until it is added again. A process that runs there goes on.
struct SlotGone {
  Slot slot = 0;
};
struct Begun {};  ///< all slots of the start are added
/// Of what the launcher sees at once it says kLost first, then LossAnnounced, then kFollowed: the first of
/// them stops the attempt, and whatever ends behind that counts as stopped. With kContinue the slot of a
/// process that was lost before is not used until it is added again; those of the others are, unless they are
/// gone.
struct ProcessEnded {
  int64_t attempt = 0;
  Slot slot = 0;
  Ending how = Ending::kDone;
};
/// Ranks of the attempt miss one: it hangs, or is cut off. As if it were lost, but that it still has to end.
/// With kRestart its slot is used for the next attempt only where there is no spare one: the host of a rank
/// that is cut off from the others may still answer the launcher.
struct LossAnnounced {
  int64_t attempt = 0;
  std::optional<Slot> slot;  ///< whose; nothing: a connection broke, nobody knows why
};
struct StateKept {  ///< the job can go on from this minibatch; an earlier one where copies went with their
                    ///< hosts
  int64_t minibatch = 0;
};
struct Interrupted {};  ///< the launcher got a signal, and has passed it on: the ranks end by themselves
using LauncherEvent =
    std::variant<SlotAdded, SlotGone, Begun, ProcessEnded, LossAnnounced, StateKept, Interrupted>;

// What the launcher is to do.

/// Comes when all processes of the attempt before have ended. Who stays has the rank that it had, spare slots
/// take the ranks that are free, and those that nobody takes are closed up.
struct StartAttempt {
  int64_t attempt = 0;      ///< from 0
  std::vector<Slot> slots;  ///< by rank
};
/// What still runs of the attempt. It may be killed after it was to be drained; each comes once.
struct StopAttempt {
  int64_t attempt = 0;
  bool drain = false;  ///< its ranks are to leave a checkpoint first; otherwise they are killed
};
enum class Outcome { kDone, kFailed, kLost, kInterrupted };
struct EndJob {
  Outcome outcome = Outcome::kDone;
  std::string reason;  ///< of kLost unless with kEnd: what is missing to go on; else ""
};
using LauncherCommand = std::variant<StartAttempt, StopAttempt, EndJob>;

/// With kEnd no attempt is ever stopped: its ranks end by themselves when one is lost or fails. Otherwise the
/// first loss or failure has the others killed, also while they are drained or interrupted.
class Attempts {
 public:
  explicit Attempts(AttemptRules rules);
  /// What follows from the event, in this order. Events of an attempt that is over, doubled ones, and any
  /// behind EndJob, have no effect.
  std::vector<LauncherCommand> take(const LauncherEvent& event);
  int64_t attempt() const { return attempt_; }  ///< the last that was started; -1: none
  bool ended() const { return ended_; }         ///< EndJob was said

 private:
  using Commands = std::vector<LauncherCommand>;
  enum class Stopping { kNo, kDrains, kKilled };

  void on(const SlotAdded& added, Commands& commands);
  void on(const SlotGone& gone, Commands& commands);
  void on(const Begun& begun, Commands& commands);
  void on(const ProcessEnded& ended, Commands& commands);
  void on(const LossAnnounced& announced, Commands& commands);
  void on(const StateKept& kept, Commands& commands);
  void on(const Interrupted& interrupted, Commands& commands);

  bool is_there(Slot slot) const;        // a process may be started on it
  void take_away(Slot slot);             // until it is added again
  int64_t next_ranks() const;            // of an attempt that would start now
  std::vector<Slot> next_slots() const;  // its slots, by rank
  void lose(std::optional<Slot> slot, Commands& commands);
  void kill(Commands& commands);
  void all_ended(Commands& commands);
  void start(Commands& commands);  // or end, where slots are missing
  void end(Outcome outcome, std::string reason, Commands& commands);

  const AttemptRules rules_;
  bool interrupted_ = false, ended_ = false;
  std::vector<Slot> there_;  // slots, in the order in which they were added
  int64_t newest_ = -1;      // minibatch whose state was kept
  int64_t fruitless_ = 0;    // attempts in a row

  std::optional<Slot> silent_;  // of the last loss
  // Of the last attempt:
  int64_t attempt_ = -1;
  std::vector<Slot> slots_;  // by rank
  std::set<Slot> running_;   // processes that have not ended
  Stopping stopping_ = Stopping::kNo;
  bool lost_ = false, failed_ = false, all_done_ = true, kept_newer_ = false;
};

}  // namespace pipewright
