// What ranks and rank 0 say to each other so that all do the same at the same minibatch.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace pipewright {

// From a rank to rank 0. Rounds are counted from 1; each is about one place where all stop.
struct SignalHeard {
  int signal = 0;  ///< SIGINT or SIGTERM
};
/// The answer to BeginNoMore.
struct BegunUpTo {
  int64_t round = 0;
  int64_t minibatch = 0;  ///< the last whose forward it has begun at the first stage; of other ranks any less
};
/// The rank knows where to stop.
struct StopKnown {
  int64_t round = 0;
};
/// The rank has made the change that the round was for.
struct ChangeMade {
  int64_t round = 0;
};
/// Of a stage's layers, where the pipeline has drained before a minibatch and a decision is due; none where
/// the policy reads none, and it is all that this rank has told until then that counts.
struct GradientNorms {
  int64_t minibatch = 0;
  int64_t stage = 0;
  std::vector<double> norms;
};
using AgreementMessage = std::variant<SignalHeard, BegunUpTo, StopKnown, ChangeMade, GradientNorms>;

// From rank 0 to ranks.
/// No forward of the first stage begins from here on, until BeginAgain.
struct BeginNoMore {
  int64_t round = 0;
  int signal = 0;  ///< what for; 0: a change
};
/// Minibatches from this one on are not trained under the plan in force.
struct StopBefore {
  int64_t round = 0;
  int64_t minibatch = 0;
  std::string change;  ///< "" where a signal ends the run there
};
/// All ranks know where to stop: forwards go on up to there.
struct BeginAgain {
  int64_t round = 0;
};
/// What was decided where the pipeline has drained before a minibatch.
struct DrainDecided {
  int64_t minibatch = 0;
  std::string change;  ///< "": none
};
/// For ranks without a part in the generation.
struct GenerationEnded {
  int64_t generation = 0;
  bool stopped = false;  ///< by a signal: the run ends there
  int64_t next_minibatch = 0;
};
using Order = std::variant<BeginNoMore, StopBefore, BeginAgain, DrainDecided, GenerationEnded>;

}  // namespace pipewright
