// The links of a plan.
#pragma once

#include "graph/plan.h"
#include "graph/sync_rules.h"
#include "runtime/stage/streams.h"
#include "runtime/transport/device_links.h"

namespace pipewright {

/// Links between ranks that send each other activations, gradients or sums of tied parameters; sums of stages
/// with replicas. A link has one kind of message of one stage, because what has no tags needs one order on
/// both sides, and no message may wait for one of another kind:
///
/// - Activations of stage s to s + 1, from one rank to another: minibatches in the order of both action
/// lists,
///   which is the same (messages of one tag keep their order), the parts of each in order. Evaluation shares
///   the link: it walks when training has drained, on both sides.
/// - Gradients likewise, in the other direction.
/// - Tied parameters: one link for each ordered pair of ranks. Both sides go through the parameters, and for
/// each
///   through the sending stages, in ascending order.
/// - A sum for the gradients and buffers of a stage: all its replicas go through the buckets in one order,
/// and
///   average buffers when training has drained.
///
/// A send waits for the receive on the other side, as a message over Gloo does on the host
/// (runtime/transport/paired.h); schedules that run there close no circle here, as every link has a stream
/// and a thread of its own. Tensors of the host (evaluation's results) go over the host's transport and are
/// not here.
///
/// `clips`: gradients are clipped. Where that is over the whole model, all ranks of a pipeline have a sum of
/// their own for it.
DeviceLinks links_of(const Plan& plan, StreamTags tags, bool clips,
                     const SyncFacts& sync = sync_facts("all-reduce"));

/// Are gradients clipped by the norm over the whole model (docs/semantics.md, Clipping)? Else by each
/// stage's.
bool clips_over_model(const Plan& plan);

}  // namespace pipewright
