// What ranks tell rank 0: one type, and one form in which it travels.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "graph/summary.h"
#include "runtime/messages/agreement.h"
#include "runtime/messages/checkpoint_stage.h"
#include "runtime/messages/evaluated_minibatch.h"
#include "runtime/messages/probed.h"
#include "runtime/monitor/core_sample.h"
#include "runtime/monitor/level_monitor.h"
#include "runtime/monitor/message_log.h"

namespace pipewright {

/// Of the update that a minibatch is part of, at the stage that computes the loss. Absent: not said.
struct UpdateFigures {
  std::optional<double> learning_rate;
  std::optional<double> gradient_norm;
};

/// Where replicas share each minibatch: the loss is that of part `number` of `count`, times what it counts in
/// all.
struct LossPart {
  int64_t number = 0;
  int64_t count = 1;
};

struct MinibatchLoss {
  int64_t minibatch = 0;
  double loss = 0;
  double elapsed_seconds = 0;  ///< since the training began
  UpdateFigures update = {};
  LossPart part = {};
};

/// Rank 0 begins with one: evaluations are written in the order of these messages, whichever ranks their
/// results come from. One without such a message is written when it is complete.
struct EvaluationBegins {
  int64_t epoch = 0;
  int64_t minibatches = 0;  ///< trained before, of an evaluation within an epoch; 0: at the epoch's end
};

struct EvaluationPart {
  int64_t epoch = 0;
  int64_t minibatches = 0;  ///< likewise
  EvaluatedMinibatch evaluated;
};

/// The pipelines drained before a minibatch.
struct DrainSpread {
  int64_t minibatch = 0;
  double spread = 0;  ///< as Worker::drain_spread()
};

/// Of a TraceWriter, and when its time 0 was: microseconds of Unix time. Ranks begin one after the other.
struct TraceDocument {
  std::string text;
  int64_t zero_unix_microseconds = 0;
};

/// The rank has written its part of the checkpoint of a minibatch, or could not. It has told of all
/// minibatches before that.
struct CheckpointPart {
  int64_t next_minibatch = 0;
  std::map<int64_t, CheckpointStage> stages;  ///< by number
  bool kept = false;      ///< of the state that is kept for lost ranks; else of the run folder's checkpoints
  std::string lost = {};  ///< why it could not be written, of a kept state; "": it is there
};

/// The rank has written its part of the final weights of a stage.
struct WeightsSaved {};

/// What the rank is doing, told about once a second: for who watches the run.
struct RankStatus {
  std::string operation;          ///< "forward of minibatch 17"; "" between two
  double seconds = 0;             ///< in it
  int64_t minibatch = -1;         ///< the last of which an operation began; -1: none yet
  double waited_seconds = 0;      ///< for other ranks, since it began
  int64_t peak_memory_bytes = 0;  ///< tensors
};

/// What frozen layers make is no function of the sample, so that nothing of it can be kept (--cache). Told
/// where a decision is due, before GradientNorms.
struct PrefixImpure {};

/// RankSummary: at the end. SpeedChange: the rank computes slower, or faster again. EpochSummary: of this
/// rank, as if it were the only one; the plan's keys and the learning rate may be left out but of rank 0's.
/// GenerationSummary: a plan has come into force; told by one rank, in their order.
using RankMessage =
    std::variant<MinibatchLoss, EvaluationBegins, EvaluationPart, RankSummary, SpeedChange, DrainSpread,
                 EpochSummary, TraceDocument, GenerationSummary, CheckpointPart, WeightsSaved, MessageLog,
                 CoreSample, RankStatus, ProbedLink, ProbedPair, CrowdSample, ProbedExchange, PrefixImpure,
                 SignalHeard, BegunUpTo, StopKnown, ChangeMade, GradientNorms>;

/// One line. Without a schema: ranks of a job are of one build. Numbers that are not finite become NaN.
std::string text_of(const RankMessage& message);
/// InputError if it is none.
RankMessage rank_message_of(const std::string& text);

/// What ranks wait for until rank 0 has heard it: of other messages it is enough that they come.
std::optional<AgreementMessage> agreement_in(const RankMessage& message);
RankMessage message_of(const AgreementMessage& agreement);

}  // namespace pipewright
