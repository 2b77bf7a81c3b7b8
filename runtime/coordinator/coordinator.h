// What rank 0 decides for all ranks of a training run: where they stop, for a signal or for another plan;
// what a policy decides where the pipeline is empty; when ranks without a part hear of the end of a
// generation. A state machine without clock, socket, file or thread: rank 0 tells it what has happened and
// carries out what it says (runtime/control/coordination.h). What the ranks make of its orders: follower.h.
//
// Rounds. A signal reaches one rank, or all of them at different times; a change of plan is decided on rank
// 0; meanwhile ranks work on different minibatches. So: no rank begins a forward of the first stage from
// BeginNoMore on, and each says which one it began last; behind the last of all a place to stop is found
// (PlaceStop); when all ranks know it, the first stage goes on up to there (BeginAgain), and the pipeline
// drains as at the end of a span. A round ends the run, or is over when every rank has made the change; only
// then the next one opens. If a signal and a change wait, the signal is first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/messages/agreement.h"

namespace pipewright {

struct CoordinatorRules {
  int64_t ranks = 1;
  bool heeds_signals = true;
};

// What has happened.
struct Heard {
  int64_t rank = 0;
  AgreementMessage message;
};
/// All ranks are to stop for this. One at a time: the next when its round is over on rank 0.
struct ChangeProposed {
  std::string change;
};
/// The answer to PlaceStop.
struct StopPlaced {
  int64_t round = 0;
  int64_t minibatch = 0;
};
/// The pipeline is empty before the minibatch, and a policy decides there. Minibatches ascend.
struct DecisionDue {
  int64_t minibatch = 0;
  int64_t ranks = 1;         ///< with a part in the plan in force: the first ones
  bool wants_norms = false;  ///< all of them tell GradientNorms
};
/// The answer to AskPolicy. Where it is a change rank 0 has made a note of it: PlaceStop finds a place under
/// the plan that it leads to.
struct PolicyAnswered {
  int64_t minibatch = 0;
  std::string change;  ///< "": none
};
struct GenerationOver {
  GenerationEnded how;
  int64_t ranks = 1;  ///< that had a part in it: the first ones
};
using CoordinatorEvent =
    std::variant<Heard, ChangeProposed, StopPlaced, DecisionDue, PolicyAnswered, GenerationOver>;

// What rank 0 is to do.
struct Tell {
  int64_t first_rank = 0, end_rank = 1;  ///< these ranks
  Order order;
};
/// Finds a minibatch before which all can stop: no rank can have asked its neighbour for anything from it on,
/// or have done all before it, if no minibatch behind `last_begun` has been begun. Before the first has been
/// begun, `last_begun` is the one before it.
struct PlaceStop {
  int64_t round = 0;
  int64_t last_begun = 0;
};
struct AskPolicy {
  int64_t minibatch = 0;
  std::vector<GradientNorms> norms;  ///< by rank, if they were wanted
};
/// A signal ends the run behind the minibatch, at a place that fits the plan in force: nothing is decided.
struct DecideNothing {
  int64_t minibatch = 0;
};
using CoordinatorCommand = std::variant<Tell, PlaceStop, AskPolicy, DecideNothing>;

/// The answer to PlaceStop where it is known beforehand that further plans follow. It is never where one
/// ends: a rank that has done its part before that, without the last minibatches, is in the change already
/// and waits for the state of the others. `place(generation, last_begun)`: as PlaceStop asks for it, under
/// the plan of the generation, whose end is the latest. `end_of(generation)`: where the next plan begins;
/// nothing for the last one.
int64_t place_within_plan(int64_t generation, int64_t last_begun,
                          const std::function<int64_t(int64_t generation, int64_t last_begun)>& place,
                          const std::function<std::optional<int64_t>(int64_t generation)>& end_of);

class Coordinator {
 public:
  explicit Coordinator(CoordinatorRules rules) : rules_(rules) {}
  /// What follows from the event, in this order. What comes late or twice has no effect.
  std::vector<CoordinatorCommand> take(const CoordinatorEvent& event);

 private:
  using Commands = std::vector<CoordinatorCommand>;

  void on(const Heard& event, Commands& commands);
  void on(const ChangeProposed& event, Commands& commands);
  void on(const StopPlaced& event, Commands& commands);
  void on(const DecisionDue& event, Commands& commands);
  void on(const PolicyAnswered& event, Commands& commands);
  void on(const GenerationOver& event, Commands& commands);
  void hear(int64_t rank, const SignalHeard& said, Commands& commands);
  void hear(int64_t rank, const BegunUpTo& said, Commands& commands);
  void hear(int64_t rank, const StopKnown& said, Commands& commands);
  void hear(int64_t rank, const ChangeMade& said, Commands& commands);
  void hear(int64_t rank, const GradientNorms& said, Commands& commands);
  void open_round(Commands& commands);
  void place_stop(Commands& commands);
  void ask_policy(Commands& commands);
  void conclude(const std::string& change, Commands& commands);
  void end_round(Commands& commands);
  void tell_all(Order order, Commands& commands) const;

  const CoordinatorRules rules_;
  // Of rounds.
  enum class Phase {
    kNone,     // no round is open
    kAsked,    // waits for BegunUpTo of all
    kPlacing,  // waits for StopPlaced
    kKnown,    // waits for StopKnown of all
    kOpen,     // waits for ChangeMade of all; of a signal, for nothing more
  };
  Phase phase_ = Phase::kNone;
  int64_t round_ = 0;  // the open one, or the last
  int signal_ = 0;     // that was heard first
  int of_round_ = 0;   // the signal that the round is for; 0: a change
  std::optional<std::string> proposed_;
  std::vector<bool> said_;  // by rank: BegunUpTo, or then StopKnown
  std::vector<bool> made_;  // by rank: ChangeMade, which may come as soon as the rank knows where to stop
  int64_t last_begun_ = 0;
  bool ends_ = false;  // a place to stop for a signal has been asked for
  // Of decisions.
  std::optional<DecisionDue> due_;
  bool asked_policy_ = false;
  int64_t decided_up_to_ = -1;                                 // the last minibatch of a decision
  std::map<int64_t, std::map<int64_t, GradientNorms>> norms_;  // by minibatch and rank, until decided
  int64_t ended_generations_ = -1;                             // the last that was told
};

}  // namespace pipewright
