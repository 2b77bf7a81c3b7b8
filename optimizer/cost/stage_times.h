// What a stage's work takes: passes, messages, sums over replicas, updates. docs/cost-model.md has the
// formulas, formulas.h those of links.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

/// Seconds of one message of `bytes`.
double message_seconds(double bytes, const CostInputs& inputs);
/// Of gradients in a sum over replicas, as many as take so long on a link by themselves, by the rate that
/// searches have.
double exchanged_bytes(const StageLoad& load, const CostInputs& inputs);
/// How many times as long a byte of it takes there as by itself, as prices have it: by what was measured of
/// sums of about this size, at least exchange_factor. `on_one_host`: the replicas are in one innermost group.
double priced_exchange_factor(const StageLoad& load, int64_t replicas, const CostInputs& inputs,
                              bool on_one_host = false);
/// exchanged_bytes() with that.
double priced_exchange_bytes(const StageLoad& load, int64_t replicas, const CostInputs& inputs,
                             bool on_one_host = false);
/// One update of all its weights, in place, by their bytes: a sum over nodes.
double step_seconds(double trainable_bytes, const CostInputs& inputs);
double step_seconds(const StageLoad& load, const CostInputs& inputs);
/// Of one minibatch on its replica, beside forward and backward: its gradients added to those of the round
/// before it, or copied to where the sum over replicas takes them.
double gather_seconds(const StageLoad& load, int64_t replicas, const CostInputs& inputs);
/// Of one forward, before it: what it reads instead of the weights, where those are predicted. That reads
/// them and what the update rule keeps, and writes as many: 2 + slots passes over them, of which adding
/// gradients takes three.
double prediction_seconds(const StageLoad& load, const CostInputs& inputs);
/// Of one update, more than step_seconds(): old weights that minibatches in flight still read are left as
/// they are, and a sum over several minibatches is divided.
double further_step_seconds(const StageLoad& load, int64_t replicas, const CostInputs& inputs);
/// What copies of tied parameters take before an update: their messages to the other stages.
double tied_seconds(const StageLoad& load, const CostInputs& inputs);
/// One all-reduce over `replicas` ranks: direct reduce-scatter, then all-gather, on links in both directions
/// at once.
double all_reduce_seconds(double bytes, int64_t replicas, const CostInputs& inputs);

/// What the runtime will spend.
StageTimes stage_times(const StageLoad& load, int64_t replicas, const CostInputs& inputs);
/// Of these the messages alone, on links of level 0.
void add_messages(const StageLoad& load, const CostInputs& inputs, StageTimes* times);
/// Threads of a rank that make its input, where so many ranks of the plan are on its host: on a host those
/// that compute; beside a device as many as a run starts (graph/data_workers.h), of which no more than its
/// share of the cores helps; one where nothing says how many cores there are.
int64_t input_threads(int64_t host_ranks, const CostInputs& inputs);
/// Of one minibatch, whose samples they share.
double input_seconds(const CostInputs& inputs);
/// Adds what making the input takes of the first stage's time on a host: minibatches are made ahead, a new
/// one is begun when one is taken, on the core that then begins its forward. Beside a device ranks wait for
/// input only where it is what takes longest (loading_seconds()).
void add_loading(const StageLoad& load, int64_t replicas, const CostInputs& inputs, StageTimes* times);
/// Seconds of a minibatch below which inputs do not come: each of the first stage's ranks makes its own, on a
/// host on the cores that compute.
double loading_seconds(const StageLoad& first, int64_t replicas, const CostInputs& inputs);
/// How many times as long a stage's passes and updates take beside other ranks of its host.
struct CrowdFactors {
  double compute = 1, update = 1;
};
/// Where `ranks` ranks of its host train at a time, `in_step` some of them as replicas of the stage; of one
/// minibatch at a time, where ranks wait for it by turns.
CrowdFactors crowd_factors(int64_t ranks, bool in_step, const CostInputs& inputs);
StageTimes crowded(StageTimes times, const CrowdFactors& factors);
/// Which factor goes with a stage of so many replicas, on whose host `ranks` of the plan are.
double HostFactors::*host_factor_of(int64_t replicas, int64_t ranks, const CostInputs& inputs);
/// The times with computing and update taking that much longer.
StageTimes calibrated(StageTimes times, int64_t replicas, int64_t ranks, const CostInputs& inputs);
/// What is the same for all that compute: of the stage, and of each replica that is not as fast.
template <typename Change>
void change_computing(StageTimes* times, const Change& change) {
  change(*times);
  for (ReplicaTimes& own : times->replicas) change(own);
}
/// The same as it stands in a plan, with the memory (`stage_memory`).
StagePrediction stage_prediction(const StageTimes& times, const StageMemory& memory);

/// Adds what the ends of the stage's messages take of its rank's core, as those pass level `in_level` of
/// `inputs.levels` before it and `out_level` behind it (both 0 where there are none). Of one minibatch at a
/// time nothing computes meanwhile: the messages' own time has it.
void add_message_ends(const StageLoad& load, int in_level, int out_level, const CostInputs& inputs,
                      StageTimes* times);

}  // namespace pipewright
