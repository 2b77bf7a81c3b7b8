// The order of actions of a stage. All replicas' actions have places on one line, and each rank runs its own
// in the order of their places. So replicas need not know of each other, any number of minibatches fits any
// replica counts, and one argument per schedule shows that no waits form a circle.
//
// Why no depths deadlock under 1f1b, where no stage runs further ahead than the one before it
// (usable_in_flight()): take the places as ranks in one order for the whole pipeline, AR j with U j; of equal
// places forwards come first by rising stage, then backwards by falling stage, then reduces and updates.
// Every action waits only for actions that are lower in this order, and such a relation has no cycle.
//  * F k waits for F k of the stage before: equal place, lower stage. What stands before it on its own rank
//    has lower or equal places.
//  * B k waits for B k of the stage after: the distance is no larger there, so its place is not higher, and
//    its stage is.
//  * AR j waits for every replica's list up to its own AR j: actions of no higher place.
//  * U j of a stage with a copy of a tied parameter waits for the lists of the other stages with one, up to
//    their own U j. Move all U j of the pipeline to the place of stage 0's, the highest: what then stands
//    before them is of no higher place, and nothing of another stage waits for what comes after a U j and
//    before that place but forwards of the next round, which no backward of this one needs.
//
// Sends of activations never wait: at most a depth of a rank's are untaken. A send of gradients may wait
// until its receiver, stage s - 1, has posted an earlier gradient, k' < k, which it does at the latest when
// it reaches RG k'. Move all places of a stage down by its distance W: then B k has the place k, F k the
// place k - W, and all waits still lead down or stay in the same order, since W does not grow from stage to
// stage. The new wait leads from place k to place k' < k.
//
// With update intervals the places of all updates follow each other, so this holds update by update; gpipe's
// are (forward, k), (backward, k), (update); a BW waits for nothing but its own BI. Frozen stages wait for
// nobody but the receivers of what they send, which closes no circle: F k' of the stage behind, k' < k, waits
// for nothing of F k. For `interleaved` see interleaved.cc. Of orders that are listed (zbv, dualpipev,
// custom) no argument says so: each replica is a pipeline for itself, whose lists of an update are what they
// are, so the dry run of one update is the proof for every span, as what a span leaves out waits for nothing.
#pragma once

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// The places F k: k, B k: k + ahead, U j: the last B of the whole round j; of equal ones F before B before
/// U. Updates stand between the same minibatches on every replica, also in rounds that are cut short.
std::vector<Action> asynchronous_order(const StageTurns& turns, int64_t replica, int64_t ahead, Span span);

/// The same within each update interval, nothing passing its U. With `hold` >= `ahead` the backward is split:
/// BI k: k + ahead, BW k: k + hold, in this order of equal ones.
constexpr int64_t kWholeBackward = -1;
std::vector<Action> interval_order(const StageTurns& turns, int64_t replica, int64_t ahead, int64_t hold,
                                   Span span);

/// What a rank of `group` does with the `minibatches` that it has of an update, for all its stages: F, BI and
/// BW, or F and B, in any order, with the number of the minibatch among these.
using IntervalList = std::vector<Action> (*)(const PipelineShape& shape, int64_t group, int64_t minibatches);

/// The rank's lists for the updates of a span, each with its U behind it, stage by stage. What the span has
/// not is left out.
std::vector<Action> listed_order(IntervalList list, const PipelineShape& shape, int64_t group,
                                 int64_t replica, Span span);
/// By stage, the most that a rank has between forward and backward.
std::vector<int64_t> listed_depths(IntervalList list, const PipelineShape& shape);

}  // namespace pipewright
