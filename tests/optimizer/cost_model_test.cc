// The formulas by numbers worked out by hand, and the ways a sum over a plan can go wrong.
#include "optimizer/cost/cost_model.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/evaluate.h"
#include "runtime/schedule/kept_memory.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

ProfiledNode node(const std::string& name, std::vector<std::string> inputs, int64_t bytes, double seconds) {
  ProfiledNode made;
  made.name = name;
  made.layer = name;
  made.inputs = std::move(inputs);
  made.outputs = {{name + ".out", bytes}};
  made.forward_seconds = seconds;
  made.backward_input_seconds = seconds;
  made.backward_weight_seconds = seconds;
  return made;
}

StageLoad example_load() {
  StageLoad load;
  load.forward_seconds = 0.1;
  load.backward_seconds = 0.2;
  load.parameter_bytes = 5000;
  load.trainable_bytes = 4000;
  load.buffer_bytes = 100;
  load.saved_bytes = 700;
  load.held_bytes = 50;
  load.workspace = {600, 600};
  load.in_bytes = 2000;
  load.out_bytes = 3000;
  load.first = load.last = false;
  return load;
}

CostInputs example_inputs() {
  CostInputs inputs;
  inputs.bandwidth_bytes_per_second = 1e4;
  inputs.latency_seconds = 0.01;
  inputs.update.parts.step_in_place_seconds = 1e-5;  // of one byte
  inputs.optimizer_slots = 2;
  return inputs;
}

TEST_CASE("memory: copies of weights in bfloat16 are kept with every version of them") {
  CostInputs inputs = example_inputs();
  inputs.update.bytes = 8000;
  const StageMemory without = stage_memory(example_load(), 1, 3, inputs);
  inputs.update.parts.copied_bytes = 3000;  // of a profile with other weights beside
  const StageMemory with = stage_memory(example_load(), 1, 3, inputs);
  CHECK(with.weights_bytes == without.weights_bytes + 1875);
  CHECK(with.versions_bytes == without.versions_bytes + 2 * 1500);
  CHECK(with.total_bytes() == without.total_bytes() + 1875 + 2 * 1500);
}

TEST_CASE("pipewright: a replicated stage in the middle") {
  // 4 replicas: all-reduce 2 L + 2 * 3/4 * 4000 B / 1e4 B/s = 0.62 s, once in 4 minibatches.
  const StagePeriod period = stage_period(example_load(), 4, example_inputs());
  CHECK(period.compute_seconds == Approx(0.3 / 4));
  CHECK(period.gradient_sync_seconds == Approx(0.62 / 4));
  CHECK(period.step_seconds == Approx(0.04 / 4));
  // Out: activations 3000 B and the gradient of what came in, 2000 B, each with its latency.
  CHECK(period.link_seconds == Approx((0.01 + 0.3 + 0.01 + 0.2) / 4));
  CHECK(period.total_seconds() == Approx(0.96 / 4));  // beside each other, not one after the other
  CHECK(std::string(period.binding()) == "gradient sync");
}

TEST_CASE("pipewright: one replica reduces nothing, a lone stage sends nothing") {
  StageLoad load = example_load();
  load.first = load.last = true;
  const StagePeriod period = stage_period(load, 1, example_inputs());
  CHECK(period.gradient_sync_seconds == 0);
  CHECK(period.link_seconds == 0);
  CHECK(period.total_seconds() == Approx(0.34));
  CHECK(all_reduce_seconds(0, 4, example_inputs()) == 0);
}

TEST_CASE(
    "pipewright: updates that keep old weights, gathered gradients, a crowded host, sums that are slower "
    "than links") {
  CostInputs inputs = example_inputs();
  inputs.update = {1, 1.2e-5, {1e-5, 3e-6, 5e-6, 7e-6}};
  const StageLoad load = example_load();  // 4000 B, 0.04 s in place
  // 1F1B with stashed weights: a stage in the middle keeps old ones. One replica takes gradients as they are.
  StageTimes one = stage_times(load, 1, inputs);
  CHECK(one.step_seconds == Approx(0.04 + 0.008));
  CHECK(one.backward_seconds == Approx(0.2));
  StageLoad last = load;
  last.last = true;
  CHECK(stage_times(last, 1, inputs).step_seconds == Approx(0.04));
  // Two replicas: each copies its gradients to where they are summed, and the sum is divided.
  const StageTimes two = stage_times(last, 2, inputs);
  CHECK(two.backward_seconds == Approx(0.2 + 0.02));
  CHECK(two.step_seconds == Approx(0.04 + 0.028));
  // Draining after 4 minibatches: three of four are added; nobody reads old weights.
  inputs.weights = WeightRule::kFlush;
  inputs.minibatches_per_update = 4;
  const StageTimes drained = stage_times(load, 1, inputs);
  CHECK(drained.backward_seconds == Approx(0.2 + 0.012 * 3 / 4));
  CHECK(drained.step_seconds == Approx(0.04 + 0.028));
  // Two of them on each of two replicas: one copied, one added.
  CHECK(stage_times(load, 2, inputs).backward_seconds == Approx(0.2 + (0.02 + 0.012) / 2));

  // With two devices behind it a stage that must not cross two updates makes one of two minibatches, of which
  // one is added; on three replicas of three, each of which copies its own.
  inputs.minibatches_per_update = 0;
  inputs.weights = WeightRule::kPaci;
  StageLoad ahead = load;
  ahead.later_devices = 2;
  CHECK(stage_times(ahead, 1, inputs).backward_seconds == Approx(0.2 + 0.012 / 2));
  CHECK(stage_times(ahead, 1, inputs).step_seconds == Approx(0.04 + 0.028));
  CHECK(stage_period(ahead, 1, inputs).step_seconds == Approx(0.04 / 2));
  CHECK(stage_times(ahead, 3, inputs).backward_seconds == Approx(0.2 + 0.02));
  CHECK(stage_period(ahead, 3, inputs).step_seconds == Approx(0.04 / 3));
  // Predicted weights are made of the weights and one slot, or two: three passes, or four.
  inputs.weights = WeightRule::kPredict;
  inputs.optimizer_slots = 1;
  CHECK(stage_times(load, 1, inputs).step_seconds == Approx(0.04));
  CHECK(stage_times(load, 1, inputs).forward_seconds == Approx(0.1 + 0.012));
  inputs.optimizer_slots = 2;
  CHECK(stage_times(load, 1, inputs).forward_seconds == Approx(0.1 + 0.012 * 4 / 3));
  CHECK(stage_times(last, 1, inputs).forward_seconds == Approx(0.1));

  inputs = example_inputs();
  inputs.crowd = ProfiledCrowd{3, 1.2, 1.5, 1.4, 1.8};
  const StageTimes alone = stage_times(load, 1, inputs);
  const auto beside = [&](int64_t ranks, bool in_step) {
    return crowded(alone, crowd_factors(ranks, in_step, inputs));
  };
  CHECK(beside(1, false).forward_seconds == alone.forward_seconds);
  CHECK(beside(2, false).forward_seconds == Approx(1.1 * 0.1));
  CHECK(beside(3, false).backward_seconds == Approx(1.2 * 0.2));
  CHECK(beside(9, false).step_seconds == Approx(1.5 * 0.04));
  CHECK(beside(1, true).forward_seconds == alone.forward_seconds);
  CHECK(beside(2, true).backward_seconds == Approx(1.2 * 0.2));
  CHECK(beside(9, true).step_seconds == Approx(1.8 * 0.04));
  inputs.one_at_a_time = true;  // by turns
  CHECK(beside(2, false).forward_seconds == alone.forward_seconds);
  inputs.crowd->by_turns_compute_factor = 1.3;
  CHECK(beside(1, false).forward_seconds == alone.forward_seconds);
  CHECK(beside(2, false).forward_seconds == Approx(1.3 * 0.1));
  CHECK(beside(2, false).backward_seconds == Approx(1.3 * 0.2));
  CHECK(beside(2, false).step_seconds == alone.step_seconds);

  // An end of a message takes 1 ms and 1 us a byte; 2000 B come in, 3000 B go out, and their gradients.
  inputs = example_inputs();
  inputs.core_seconds_per_message = 1e-3;
  inputs.core_seconds_per_byte = 1e-6;
  const auto with_ends = [&](const StageLoad& of, int in_level, int out_level) {
    StageTimes times = stage_times(of, 1, inputs);
    add_message_ends(of, in_level, out_level, inputs, &times);
    return times;
  };
  CHECK(with_ends(load, 0, 0).forward_seconds == Approx(0.1 + 3e-3 + 4e-3));
  CHECK(with_ends(load, 0, 0).backward_seconds == Approx(0.2 + 3e-3 + 4e-3));
  CHECK(with_ends(last, 0, 0).forward_seconds == Approx(0.1 + 3e-3));
  StageLoad frozen = load;
  frozen.frozen = true;
  CHECK(with_ends(frozen, 0, 0).backward_seconds == Approx(0.2));
  StageLoad behind = load;
  behind.after_frozen = true;
  CHECK(with_ends(behind, 0, 0).backward_seconds == Approx(0.2 + 4e-3));
  inputs.levels = {{2, 1e4, 0.01}, {2, 1e3, 0.01}};
  inputs.levels[1].core_seconds_per_byte = 1e-5;
  CHECK(with_ends(load, 0, 1).forward_seconds == Approx(0.1 + 0.03));
  inputs.one_at_a_time = true;  // nothing computes meanwhile
  CHECK(with_ends(load, 0, 1).forward_seconds == Approx(0.1));

  // Input takes 60 ms a minibatch on the first stage's cores; beside a device nothing of its time.
  inputs = example_inputs();
  inputs.input_seconds = 0.06;
  const auto with_loading = [&](const StageLoad& of, int64_t replicas) {
    StageTimes times = stage_times(of, replicas, inputs);
    add_loading(of, replicas, inputs, &times);
    return times.forward_seconds;
  };
  StageLoad entry = load;
  entry.first = true;
  CHECK(with_loading(entry, 1) == Approx(0.1 + 0.06));
  CHECK(with_loading(load, 1) == Approx(0.1));
  CHECK(loading_seconds(entry, 2, inputs) == Approx((0.06 + 0.3) / 2));
  inputs.one_at_a_time = true;
  CHECK(with_loading(entry, 1) == Approx(0.1 + 0.06));
  inputs.one_at_a_time = false;
  StageLoad parts = entry;
  parts.split = true;
  CHECK(with_loading(parts, 3) == Approx(0.1 + 0.02));
  inputs.loads_beside = true;
  CHECK(with_loading(entry, 1) == Approx(0.1));
  inputs.input_seconds = 0.5;
  CHECK(with_loading(entry, 1) == Approx(0.1));
  CHECK(loading_seconds(entry, 2, inputs) == Approx(0.25));

  inputs = example_inputs();
  inputs.exchange_factor = 3;
  CHECK(stage_times(load, 4, inputs).reduce_seconds == Approx(0.02 + 3 * 0.6));
  CHECK(stage_period(load, 4, inputs).gradient_sync_seconds == Approx((0.02 + 3 * 0.6) / 4));
  // Measured sums of more bytes take longer for each of them than searches know.
  const double sent = 2 * 0.75 * static_cast<double>(load.trainable_bytes);
  inputs.exchange_levels = {{4, 1e4, 0.01}};
  const auto measured = [&](double bytes, double times_as_long) {
    return MessageTime{static_cast<int64_t>(bytes), 2 * 0.01 + times_as_long * bytes / 1e4};
  };
  inputs.exchange_levels[0].exchanges = {measured(sent / 2, 2), measured(sent * 2, 5)};
  const double between = (2 * 0.5 + (5 * 2 - 2 * 0.5) / 3) / 1;
  CHECK(stage_times(load, 4, inputs).reduce_seconds == Approx(0.02 + between * 0.6));
  inputs.exchange_levels[0].exchanges = {measured(sent / 2, 2), measured(sent / 1.5, 5)};
  CHECK(stage_times(load, 4, inputs).reduce_seconds == Approx(0.02 + 5 * 0.6));
  inputs.exchange_levels[0].exchanges = {measured(sent * 2, 2)};  // never less than searches say
  CHECK(stage_times(load, 4, inputs).reduce_seconds == Approx(0.02 + 3 * 0.6));
}

TEST_CASE("pipewright: a slow rank's updates, and what its sums take beyond messages, are slow too") {
  Profile profile;
  profile.model = "one";
  profile.nodes = {node("a", {}, 8, 0.1)};
  profile.nodes[0].parameters = {"w"};
  profile.nodes[0].parameter_bytes = profile.nodes[0].trainable_parameter_bytes = 4000;
  PlanRequest request;
  request.strategy = "dp";
  const auto seconds = [&](double slow, double step, double exchange_bytes_per_second) {
    profile.whole.step_seconds = step;
    Topology topology = flat_topology(2, 1e4, 0, 0);
    topology.levels[0].exchange_bytes_per_second = exchange_bytes_per_second;
    topology.devices = {{"host", 1, 0}, {"host", slow, 0}};
    Plan plan;
    plan.strategy = "dp";
    plan.schedule = "1f1b";
    plan.weights = "stash";
    plan.world_size = 2;
    plan.stages.resize(1);
    plan.stages[0].nodes = {"a"};
    plan.stages[0].layers = {"a"};
    plan.stages[0].ranks = {0, 1};
    plan.stages[0].in_flight = 1;
    return evaluate_plan(plan, profile, topology, request).minibatch_seconds;
  };
  // Half of what comes once in a round of two: an update of 0.04 s, and of the 1.2 s that a sum takes at a
  // third of the link's rate the 0.8 s that are no messages.
  for (const double slow : {0.9, 0.5, 0.25}) {
    CAPTURE(slow);
    CHECK(seconds(slow, 0.04, 0) - seconds(slow, 0, 0) == Approx(0.02 / slow));
    CHECK(seconds(slow, 0, 1e4 / 3) - seconds(slow, 0, 0) == Approx(0.4 / slow));
  }
}

TEST_CASE("Bytes at a cut: each value that is made before it and read behind it, once") {
  Profile profile;
  profile.model = "diamond";
  profile.nodes = {node("fork", {}, 10, 0.1), node("a", {"fork.out"}, 100, 0.1),
                   node("b", {"fork.out"}, 1000, 0.1), node("join", {"a.out", "b.out"}, 1, 0.1)};
  const Dataflow flow(profile);
  CHECK(live_bytes(flow, NodeSet(4, 7)) == 1100);
  CHECK(live_bytes(flow, NodeSet(4, 3)) == 110);  // the fork still has a reader
  CHECK(live_bytes(flow, ~NodeSet(4)) == 0);
}

TEST_CASE("Workspace: a backward walked through, node by node") {
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    const size_t count = 1 + random() % 8;
    NodeBytes nodes;
    NodeSet from(count), to(count);
    int64_t saved = 0, gradients = 0;
    for (size_t v = 0; v < count; ++v) {
      nodes.transient.push_back(static_cast<int64_t>(random() % 1000));
      nodes.freed.push_back(static_cast<int64_t>(random() % 1000));
      nodes.gradients.push_back(static_cast<int64_t>(random() % 1000));
      const size_t where = random() % 4;
      if (where == 0) from.set(v);
      if (where != 1) to.set(v);
      if (!to.test(v) || from.test(v)) continue;
      saved += nodes.freed[v];
      gradients += nodes.gradients[v];
    }
    // What goes on to later stages is in the messages, from its maker to its last reader.
    std::vector<DataflowValue> values;
    for (size_t v = random() % 3; v < count; v += 1 + random() % 4) {
      DataflowValue& value = values.emplace_back();
      value.producer = static_cast<int>(v);
      value.bytes = static_cast<int64_t>(random() % 1000);
      for (size_t reader = v + 1 + random() % 3; reader < count; reader += 1 + random() % 3)
        value.readers.push_back(static_cast<int>(reader));
      value.saved_bytes = static_cast<int64_t>(random() % 300);
      value.freed_at = value.readers.empty() || random() % 2 == 0 ? value.producer : value.readers[0];
    }
    const auto in_messages = [&](size_t v) {
      int64_t bytes = 0;
      for (const DataflowValue& value : values) {
        bool sent = false;
        for (const int reader : value.readers) sent = sent || !to.test(reader);
        if (sent && to.test(value.producer) && value.producer <= static_cast<int>(v) &&
            static_cast<int>(v) <= value.readers.back())
          bytes += value.bytes;
      }
      return bytes;
    };
    // Their sends may still hold them when no node does.
    const auto sent_at = [&](size_t v) {
      int64_t bytes = 0;
      for (const DataflowValue& value : values) {
        bool sent = false;
        for (const int reader : value.readers) sent = sent || !to.test(reader);
        if (sent && to.test(value.producer) && value.freed_at == static_cast<int>(v))
          bytes += value.saved_bytes;
      }
      return bytes;
    };
    int64_t live = saved, most = 0;
    bool any = false;
    for (size_t v = count; v-- > 0;) {
      if (!to.test(v) || from.test(v)) continue;
      live += nodes.gradients[v];
      const int64_t now = live + nodes.transient[v] - in_messages(v);
      most = any ? std::max(most, now) : now;
      live -= nodes.freed[v] - std::min(nodes.freed[v], sent_at(v));
      any = true;
    }
    const StageWorkspace workspace = stage_workspace(nodes, values, from, to);
    CHECK(saved + gradients + workspace.with_gradients_bytes == (any ? most : 0));
    CHECK(workspace.with_gradients_bytes <= workspace.alone_bytes);
    CHECK(workspace.alone_bytes >= 0);
  }
}

TEST_CASE("Workspace: a large value that a later stage keeps through a small view is nothing that it frees") {
  Profile profile;
  profile.model = "view";
  profile.nodes = {node("large", {}, 1000, 0.1), node("view", {"large.out"}, 10, 0.1),
                   node("wide", {"view.out"}, 500, 0.1), node("head", {"wide.out", "view.out"}, 1, 0.1)};
  profile.nodes[0].saved_bytes = 1000;
  profile.nodes[3].keeps = {"large.out"};
  const Dataflow flow(profile);
  NodeSet from(4, 3), all = ~NodeSet(4);
  // While `wide` runs: what it makes, and the view, which the head reads later.
  CHECK(stage_workspace(flow.bytes, flow.values, from, all).alone_bytes == 511);
  // One that reads the large value itself has it, and frees it.
  profile.nodes[3].inputs.push_back("large.out");
  const Dataflow direct(profile);
  CHECK(direct.bytes.freed[3] == 1000);
  CHECK(direct.bytes.freed[0] == 0);
}

TEST_CASE("Memory of a rank") {
  const StageMemory one = stage_memory(example_load(), 1, 3, example_inputs());
  CHECK(one.weights_bytes == 5100);
  CHECK(one.versions_bytes == 2 * 4000);
  CHECK(one.gradients_bytes == 4000);
  CHECK(one.optimizer_bytes == 2 * 4000);
  CHECK(one.activations_bytes == 3 * (700 + 2000 + 50));
  CHECK(one.messages_bytes == 2 * (2000 + 3000) + (3 + 1) * 2000 + 2 * 3000);
  CHECK(one.workspace_bytes == 600);
  // Of listed orders as many gradients as their receiver has in flight, and one more; never fewer than there
  // are.
  const StageMemory listed = stage_memory(example_load(), 1, 3, example_inputs(), 7);
  CHECK(listed.messages_bytes == one.messages_bytes + (7 - 4) * 2000);
  CHECK(listed.total_bytes() == one.total_bytes() + (7 - 4) * 2000);
  CHECK(stage_memory(example_load(), 1, 3, example_inputs(), 2).total_bytes() == one.total_bytes());
  // A link that holds messages itself: gradients first fill it from one side, activations from the other.
  CostInputs ring = example_inputs();
  for (const int64_t held : {100, 3 * 50 + 10, 7000, 8000, 1 << 20}) {
    ring.buffered_bytes = held;
    const StageMemory memory = stage_memory(example_load(), 1, 3, ring);
    CHECK(memory.total_bytes() == one.total_bytes() - std::min<int64_t>(held, (3 + 1) * 2000) -
                                      std::min<int64_t>(held, 3 * 50 + 3000));
    CHECK(memory.messages_bytes >= 2 * (2000 + 3000) + 3000);
    CHECK(memory.activations_bytes >= 3 * (700 + 2000));
  }
  // Gradients that are not there yet when most is.
  StageLoad late = example_load();
  late.workspace.with_gradients_bytes = -300;
  CHECK(stage_memory(late, 1, 3, example_inputs()).gradients_bytes == 4000 - 300);
  CHECK(stage_memory(late, 1, 3, example_inputs()).workspace_bytes == 0);
  // Those that a backward makes, and the place from which replicas sum.
  CHECK(stage_memory(example_load(), 2, 3, example_inputs()).gradients_bytes == 2 * 4000);
  // One in flight: the update is in place.
  CHECK(stage_memory(example_load(), 1, 1, example_inputs()).gradients_bytes == 4000);
  CostInputs interval = example_inputs();
  interval.minibatches_per_update = 4;
  CHECK(stage_memory(example_load(), 1, 3, interval).gradients_bytes == 2 * 4000);  // and the sum
  CHECK(stage_memory(example_load(), 2, 3, interval).gradients_bytes == 2 * 4000);

  const auto fits = [](int64_t memory) {
    return in_flight_that_fits(example_load(), 1, 5, memory, example_inputs());
  };
  CHECK(fits(one.total_bytes()) == 3);
  CHECK(fits(one.total_bytes() - 1) == 2);
  CHECK(fits(1000) == 0);
  CHECK(fits(1000000) == 5);
  CHECK(fits(0) == 5);
}

TEST_CASE(
    "Memory of a stage whose rank has two: what it has of it at a moment, and nothing is sent between them") {
  CostInputs inputs = example_inputs();
  inputs.minibatches_per_update = 4;
  inputs.split_backward = true;
  StageLoad load = example_load(), before = load, behind = load;
  load.waiting_gradient_bytes = before.waiting_gradient_bytes = behind.waiting_gradient_bytes = 10;
  before.out_stays = behind.in_stays = true;
  const auto at = [&](const StageLoad& stage, const StageMoment& now) {
    return stage_memory(stage, 1, 3, inputs, 0, &now);
  };
  const StageMoment all{.in_flight = 3, .waiting = 3, .runs = true};
  CHECK(at(load, all).total_bytes() == stage_memory(load, 1, 3, inputs).total_bytes());
  // The value for the stage behind is among what this has until that stage begins, then among what came in.
  StageMemory memory = at(before, {.in_flight = 2, .left_values = 1, .runs = true});
  CHECK(memory.gradients_bytes == 2 * 4000);
  CHECK(memory.activations_bytes == 2 * (700 + 2000) + 50);
  CHECK(memory.messages_bytes == 2 * 2000 + (3 + 1) * 2000 + 3000);
  CHECK(memory.workspace_bytes == 600);
  // The other stage runs: what a pass needs is not there.
  memory = at(before, {.in_flight = 2, .left_values = 1});
  CHECK(memory.gradients_bytes == 4000);
  CHECK(memory.messages_bytes == 2 * 2000 + (3 + 1) * 2000);
  CHECK(memory.workspace_bytes == 0);
  // A backward that waits may have gradients of weights.
  memory = at(before, {.in_flight = 2, .waiting = 1});
  CHECK(memory.gradients_bytes == 2 * 4000 + 10);
  // Of three messages that may not be taken yet one is of a minibatch in flight.
  memory = at(behind, {.in_flight = 1, .left_gradients = 1, .runs = true});
  CHECK(memory.activations_bytes == 700 + 2000 + 50);
  CHECK(memory.messages_bytes == 2 * 3000 + 3 * 3000 + 3000 + 2000);
  for (const StageLoad& stage : {before, behind})
    CHECK(stage_memory(stage, 1, 3, inputs).total_bytes() < stage_memory(load, 1, 3, inputs).total_bytes());
}

TEST_CASE(
    "Memory of a rank on a device: what libraries keep, uploaded input, and what captured graphs need") {
  CostInputs inputs = example_inputs();
  StageLoad load = example_load();
  const StageMemory on_host = stage_memory(load, 1, 2, inputs);
  inputs.library_bytes = 70;
  inputs.input_bytes = 9;
  inputs.uploaded_bytes = 3;
  const StageMemory later = stage_memory(load, 1, 2, inputs);
  CHECK(later.total_bytes() == on_host.total_bytes() + 70);
  load.first = true;
  // What two minibatches in flight have read, and two more as they have come.
  CHECK(stage_memory(load, 1, 2, inputs).total_bytes() == later.total_bytes() + 2 * 9 + 2 * 3);
  load.captured = true;
  // Gradients of 4000, libraries of the capture's stream, of each of two minibatches what it is sent and
  // sends, and what is at hand beside the two that are copied to what is recorded.
  CHECK(stage_memory(load, 1, 2, inputs).total_bytes() ==
        later.total_bytes() + 3 * 9 + 2 * 3 + 4000 + 70 + 2 * (2000 + 3000));
}

TEST_CASE("An update on a GPU takes what its rule's memory takes") {
  Profile profile;
  profile.model = "m";
  profile.nodes = {node("a", {"images"}, 100, 0.1)};
  profile.nodes[0].parameters = {"w"};
  profile.nodes[0].parameter_bytes = profile.nodes[0].trainable_parameter_bytes = 1000;
  profile.whole.step_seconds = 5;
  const Topology topology = flat_topology(1, 1e9, 0, 0);
  for (const auto& [device, slots, seconds] :
       {std::tuple("cpu", 2, 5.0), std::tuple("cuda:0 (any)", 0, 3.0), std::tuple("cuda:0 (any)", 1, 5.0),
        std::tuple("cuda:0 (any)", 2, 7.0)}) {
    profile.device = device;
    CHECK(cost_inputs(profile, topology, slots).update.step_seconds == Approx(seconds));
  }
  // Of a profile that has the update of the rule itself nothing is scaled.
  profile.provenance = {{"optimizer", "muon"}};
  CHECK(cost_inputs(profile, topology, 2).update.step_seconds == Approx(5));
}

TEST_CASE("Memory of a rank that recomputes: what came in and was sent for each minibatch, the rest once") {
  StageLoad load;
  load.trainable_bytes = load.parameter_bytes = 100;
  load.buffer_bytes = 3;
  load.saved_bytes = 1000;
  load.held_bytes = 20;
  load.in_bytes = 10;
  load.out_bytes = 30;
  load.first = load.last = false;
  CostInputs inputs;
  const int64_t kept = stage_memory(load, 1, 4, inputs).activations_bytes;
  CHECK(kept == 4 * (1000 + 10 + 20));
  load.recompute = true;
  CHECK(stage_memory(load, 1, 4, inputs).activations_bytes == 4 * (10 + 30 + 3) + 1000 + 20);
  CHECK(load.compute_seconds() == 2 * load.forward_seconds + load.backward_seconds);
  inputs.split_backward = true;  // made again for the first part, kept for the second
  CHECK(stage_memory(load, 1, 4, inputs).activations_bytes >= kept);
}

TEST_CASE("In-flight bound: 1 + ceil(later devices / replicas)") {
  CHECK(in_flight_bound(0, 4) == 1);
  CHECK(in_flight_bound(1, 3) == 2);
  CHECK(in_flight_bound(3, 1) == 4);
  CHECK(in_flight_bound(4, 2) == 3);
  CHECK(in_flight_bound(5, 2) == 4);
}

Profile skip_profile() {
  // a -> b -> c, and c also reads a; images are read by all and never sent.
  Profile profile;
  profile.model = "skip";
  profile.nodes = {node("a", {"images"}, 10, 0.1), node("b", {"a.out", "images"}, 100, 0.2),
                   node("c", {"b.out", "a.out", "images"}, 1000, 0.3)};
  profile.nodes[0].parameter_bytes = profile.nodes[0].trainable_parameter_bytes = 40;
  profile.nodes[0].parameters = {"w"};
  profile.nodes[2].parameter_bytes = profile.nodes[2].trainable_parameter_bytes = 40;
  profile.nodes[2].parameters = {"v"};
  profile.whole.step_seconds = 0.8;
  return profile;
}

Plan plan_with(const std::vector<std::vector<std::string>>& stages) {
  Plan plan;
  plan.model = "skip";
  for (const auto& nodes : stages) {
    Stage stage;
    stage.nodes = nodes;
    stage.ranks = {plan.world_size++};
    stage.in_flight = 2;
    plan.stages.push_back(stage);
  }
  return plan;
}

TEST_CASE("Loads of a plan: what skips a stage is relayed through it") {
  const Profile profile = skip_profile();
  const Dataflow flow(profile);
  Plan plan = plan_with({{"a"}, {"b"}, {"c"}});
  const auto loads = loads_of_plan(plan, flow);
  REQUIRE(loads.size() == 3);
  CHECK(loads[0].out_bytes == 10);
  CHECK(loads[1].in_bytes == 10);
  CHECK(loads[1].out_bytes == 110);
  CHECK(loads[2].in_bytes == 110);
  CHECK(loads[2].out_bytes == 0);
  CHECK(loads[2].compute_seconds() == Approx(0.9));
  const CostInputs inputs = cost_inputs(profile, flat_topology(3, 1e6, 0, 0), 1);
  CHECK(stage_times(loads[2], 1, inputs).step_seconds == Approx(0.4));  // half of the parameters
  // One minibatch at a time waits for messages both ways, and for the first stage's update.
  plan.schedule = "model-parallel";
  CHECK(evaluate_plan(plan, profile, flat_topology(3, 1e6, 0, 0), {}).minibatch_seconds ==
        Approx(1.8 + 2 * 120 / 1e6 + stage_times(loads[0], 1, inputs).step_seconds));
}

TEST_CASE("An update interval's exchange is priced as that of the replicas there are") {
  const Profile profile = skip_profile();
  const Topology topology = flat_topology(2, 1e3, 0, 0);
  Plan plan = plan_with({{"a", "b", "c"}});
  plan.stages[0].ranks = {0, 1};
  plan.world_size = 2;
  plan.weights = "2bw";
  plan.microbatches = 8;
  const StageTimes times = cost_of_plan(plan, profile, topology, {}).times[0];
  REQUIRE(times.reduce_seconds > 0.01);
  CHECK(evaluate_plan(plan, profile, topology, {}).minibatch_seconds ==
        Approx((times.forward_seconds + times.backward_seconds) / 2 +
               (times.reduce_seconds + times.step_seconds) / 8));
}

TEST_CASE("An update takes what it takes in the slowest class, with old weights or without") {
  Profile profile = skip_profile();
  Profile slow = profile;
  profile.whole.step_seconds = 5;
  profile.whole.update = ProfiledUpdate{1, 0.1, 0.4, 0.2};
  slow.whole.step_seconds = 4;
  slow.whole.update = ProfiledUpdate{3, 0.2, 0.3, 0.1};
  Topology topology = flat_topology(3, 1e6, 0, 0);
  topology.devices = {{"host"}, {"host"}, {"host", 1, 0, "slow"}};
  const CostInputs inputs = cost_inputs(profile, topology, 1, {{"slow", slow}});
  StageLoad all = example_load();
  all.trainable_bytes = static_cast<int64_t>(inputs.update.bytes);
  CHECK(step_seconds(all, inputs) == Approx(3));
  CHECK(step_seconds(all, inputs) + further_step_seconds(all, 1, inputs) == Approx(5));
  CHECK(gather_seconds(all, 2, inputs) == Approx(0.4));
}

TEST_CASE("Loads of a plan: bad plans") {
  Profile profile = skip_profile();
  const auto error = [&](const std::vector<std::vector<std::string>>& stages) {
    const Dataflow flow(profile);
    return testing::error_of<PlanError>([&] { loads_of_plan(plan_with(stages), flow); });
  };
  CHECK_THAT(error({{"a"}, {"b"}}), Catch::Contains("no stage holds node 'c'"));
  CHECK_THAT(error({{"a", "x"}, {"b", "c"}}), Catch::Contains("'x'"));
  CHECK_THAT(error({{"a", "b"}, {"b", "c"}}), Catch::Contains("node 'b' is in stages 0 and 1"));
  CHECK_THAT(error({{"b"}, {"a", "c"}}), Catch::Contains("values flow forward only"));
  profile.nodes[2].parameters = {"w"};
  CHECK_THAT(error({{"a"}, {"b", "c"}}), Catch::Contains("parameter 'w', read by nodes 'a' and 'c'"));
  CHECK(error({{"a", "b", "c"}}) == "<no exception>");
}

TEST_CASE("A tied parameter counts once") {
  Profile profile = skip_profile();
  profile.nodes[2].parameters = {"w"};
  const Dataflow flow(profile);
  const auto loads = loads_of_plan(plan_with({{"a", "b", "c"}}), flow);
  CHECK(loads[0].parameter_bytes == 40);
  CHECK(loads[0].trainable_bytes == 40);
}

TEST_CASE(
    "What ranks of a host take from each other counts on hosts as the profile's, for as many as are there") {
  Profile profile = skip_profile();
  profile.whole.crowd = ProfiledCrowd{2, 2, 2, 2, 2, 2};
  const auto factor = [&](const Topology& topology, std::vector<int64_t> ranks, int64_t world) {
    Stage stage;
    stage.ranks = std::move(ranks);
    return crowd_of(stage, world, cost_inputs(profile, topology, 1)).compute;
  };
  Topology pair = flat_topology(2, 1e9, 0, 0), hosts = pair, wide = flat_topology(4, 1e9, 0, 0);
  hosts.levels.push_back({2, 1e8, 0, false});
  CHECK(factor(pair, {1}, 2) == 2);
  CHECK(factor(pair, {0}, 1) == 1);
  CHECK(factor(hosts, {0}, 3) == 2);
  CHECK(factor(hosts, {2}, 3) == 1);     // alone on its host
  CHECK(factor(hosts, {1, 2}, 3) == 2);  // as slow as its slower replica
  CHECK(factor(wide, {0}, 4) == 1);      // a host of four was not measured
  wide.cores = {4, 2};
  CHECK(factor(wide, {0}, 4) == 2);  // only two of its ranks compute at a time
  Topology singles = flat_topology(1, 1e9, 0, 0);
  singles.levels.push_back({4, 1e8, 0, false});
  CHECK(factor(singles, {0, 1, 2, 3}, 4) == 1);
  pair.devices = {{"a", 1, 0}, {"a", 0.5, 0}};  // another kind of device
  CHECK(factor(pair, {0}, 2) == 2);
  CHECK(factor(pair, {1}, 2) == 1);
  PlanRequest request;
  request.ignore_crowd = true;
  CHECK_FALSE(requested_cost_inputs(profile, hosts, request).crowd);
}

TEST_CASE("Input goes to a device as its profile says, or as it is read") {
  Profile profile = skip_profile();
  const auto uploaded = [&] { return cost_inputs(profile, flat_topology(1, 1e9, 0, 0), 1).uploaded_bytes; };
  CHECK(uploaded() == 0);
  profile.whole.input_bytes = 400;
  CHECK(uploaded() == 400);
  profile.whole.uploaded_bytes = 100;
  CHECK(uploaded() == 100);
}

TEST_CASE("Input of a GPU is made by as many threads as a run has for each rank") {
  Profile profile = skip_profile();
  profile.device = "cuda:0 (any)";
  profile.input_seconds = 100;
  PlanRequest request;
  const auto price = [&](const Topology& topology, int64_t replicas) {
    Plan plan;
    plan.model = profile.model;
    plan.world_size = replicas;
    plan.stages.resize(1);
    for (int64_t rank = 0; rank < replicas; ++rank) plan.stages[0].ranks.push_back(rank);
    for (const ProfiledNode& of : profile.nodes) plan.stages[0].nodes.push_back(of.name);
    return evaluate_plan(plan, profile, topology, request).minibatch_seconds;
  };
  const Topology one = flat_topology(1, 1e9, 0, 0), four = flat_topology(4, 1e9, 0, 0);
  Topology hosts = flat_topology(2, 1e9, 0, 0);
  hosts.levels.push_back({2, 1e9, 0, false});
  CHECK(price(one, 1) == Approx(100));  // nothing says how many cores there are
  CHECK(price(four, 4) == Approx(100.0 / 4));
  request.data_workers = 5;
  CHECK(price(one, 1) == Approx(100.0 / 5));
  request.data_workers = 0;
  profile.whole.host_cores = 16;
  CHECK(price(one, 1) == Approx(100.0 / 15));
  CHECK(price(four, 1) == Approx(100.0 / 15));  // ranks that the plan has not take no cores
  CHECK(price(four, 4) == Approx(100.0 / 4 / 3));
  CHECK(price(hosts, 4) == Approx(100.0 / 4 / 7));
  profile.threads = 9;
  CHECK(price(one, 1) == Approx(100.0 / 7));
  CHECK(price(four, 4) == Approx(100.0 / 4));
  profile.threads = 1;
  profile.whole.host_cores = 400;
  CHECK(price(one, 1) == Approx(100.0 / 16));
  request.data_workers = 25;
  CHECK(price(one, 1) == Approx(100.0 / 25));
  profile.whole.host_cores = 16;
  CHECK(price(one, 1) == Approx(100.0 / 16));  // more have no cores
  CHECK(price(four, 4) == Approx(100.0 / 4 / 4));
  Topology few = four;
  few.cores = {4, 2};
  CHECK(price(few, 4) == Approx(100.0 / 4));
  profile.input_seconds = 1e-3;  // less than the device computes
  const double without = price(one, 1);
  profile.input_seconds = 16 * (without + 1e-3);
  CHECK(price(one, 1) == Approx(without + 1e-3));  // made meanwhile, while weights are updated too
  profile.device = "cpu";                          // where threads that compute make it
  profile.threads = 4;
  profile.input_seconds = 0;
  const double computing = price(one, 1);
  profile.input_seconds = 100;
  CHECK(price(one, 1) == Approx(100.0 / 4 + computing));
}

TEST_CASE("Which topologies are more than one level of equal devices") {
  const Profile profile = skip_profile();
  const auto inputs = [&](const Topology& topology) { return cost_inputs(profile, topology, 1); };
  Topology topology = flat_topology(4, 1e9, 0, 0);
  CHECK_FALSE(inputs(topology).placed());
  topology.levels.push_back({1, 1e8, 0, false});  // nothing passes it
  CHECK_FALSE(inputs(topology).placed());
  topology.levels[1].count = 2;
  CHECK(inputs(topology).levels.size() == 2);
  topology = flat_topology(1, 1e9, 0, 0);
  topology.levels.push_back({3, 1e8, 2e-3, false});
  CHECK_FALSE(inputs(topology).placed());
  CHECK(inputs(topology).bandwidth_bytes_per_second == 1e8);
  CHECK(inputs(topology).latency_seconds == 2e-3);
  topology = flat_topology(4, 1e9, 0, 0);
  topology.levels[0].shared = true;
  CHECK(inputs(topology).placed());
  topology = flat_topology(2, 1e9, 0, 90);
  topology.devices = {{"a", 0.5, 0}, {"b", 1, 80}};
  CHECK(inputs(topology).speeds == std::vector<double>{0.5, 1});
  CHECK(inputs(topology).memories == std::vector<int64_t>{90, 80});
  topology = flat_topology(2, 1e9, 0, 100);
  topology.devices = {{"a", 1, 50}, {"b", 1, 0}};
  CHECK(memory_limit_bytes(topology) == 50);
}

TEST_CASE("What hosts keep for lost ranks: what their ranks write, and their neighbour's copy") {
  // Three stages of a weight, buffers, an optimizer's slot and older versions; the second has replicas.
  Plan plan;
  plan.world_size = 4;
  plan.stages.resize(3);
  plan.stages[0].ranks = {0};
  plan.stages[1].ranks = {1, 2};
  plan.stages[2].ranks = {3};
  Prediction prediction;
  prediction.stages.resize(3);
  for (StagePrediction& stage : prediction.stages) {
    stage.memory = {};
    stage.memory.weights_bytes = 1000;
    stage.memory.optimizer_bytes = 900;
    stage.memory.activations_bytes = 1 << 20;  // no part of a state
  }
  prediction.stages[0].memory.versions_bytes = 1800;
  prediction.stages[1].memory.versions_bytes = 800;
  Topology topology = flat_topology(4, 1e9, 1e-6, 0);
  const auto bytes = [&](bool copies) {
    std::vector<int64_t> by_host;
    for (const KeptOnHost& host : kept_by_host(plan, prediction, topology, copies))
      by_host.push_back(host.bytes);
    return by_host;
  };
  CHECK(bytes(true) == std::vector<int64_t>{3700 + 2700 + 1900});
  // Two devices a host: the second replica of stage 1 writes half of its versions.
  topology.levels[0].count = 2;
  topology.levels.push_back(topology.levels[0]);
  CHECK(bytes(false) == std::vector<int64_t>{3700 + 2300, 400 + 1900});
  CHECK(bytes(true) == std::vector<int64_t>{8300, 8300});
  topology.devices = {{"a"}, {"b"}, {"c"}, {"a"}};
  CHECK(bytes(false) == std::vector<int64_t>{3700 + 1900, 2300, 400});
  CHECK(bytes(true) == std::vector<int64_t>{5600 + 400, 2300 + 5600, 400 + 2300});
  CHECK(room_for_states(int64_t{100} << 20) == (int64_t{600} << 20));
}

TEST_CASE("Sizes beyond any machine are refused, not overflown") {
  Profile profile = skip_profile();
  for (ProfiledNode& n : profile.nodes) n.saved_bytes = int64_t{1} << 52;
  CHECK_THAT(testing::error_of<InputError>([&] { Dataflow flow(profile); }), Catch::Contains("140 TB"));
}

}  // namespace
}  // namespace pipewright
