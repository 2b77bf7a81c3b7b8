#include "optimizer/commands/plan_sequences.h"

#include <algorithm>
#include <iostream>
#include <set>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/plan_changes.h"
#include "graph/units.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/report.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

std::set<std::string> nodes_of(const Plan& plan) {
  std::set<std::string> nodes;
  for (const Stage& stage : plan.stages) nodes.insert(stage.nodes.begin(), stage.nodes.end());
  return nodes;
}

double change_seconds(const std::vector<PricedGeneration>& generations) {
  double seconds = 0;
  for (size_t i = 1; i < generations.size(); ++i)
    seconds += generations[i].move_seconds + generations[i].fill_seconds;
  return seconds;
}

}  // namespace

void add_changes_option(po::options_description* options) {
  options->add_options()(
      "changes", po::value<std::string>(),
      "CHANGES.json of plans that take over on the way, as for --adapt manual; without it none does");
}

const Plan& PlanSequence::largest() const {
  return *std::max_element(plans.begin(), plans.end(),
                           [](const Plan& a, const Plan& b) { return a.world_size < b.world_size; });
}

PlanSequence read_sequence(const po::variables_map& values, const Plan& first) {
  PlanSequence sequence{{values["plan"].as<std::string>()}, {first}, {0}};
  if (values.count("changes") == 0) return sequence;
  const auto nodes = nodes_of(first);
  for (const PlanChange& change : read_plan_changes(values["changes"].as<std::string>())) {
    sequence.names.push_back(change.plan);
    sequence.plans.push_back(read_document<Plan>(change.plan));
    sequence.firsts.push_back(change.minibatch);
    try {
      check_plan_runs(sequence.plans.back());
    } catch (const PlanError& error) {
      throw PlanError(change.plan + ": " + error.what(), error.remedy());
    }
    if (nodes_of(sequence.plans.back()) == nodes) continue;
    throw PlanError(change.plan + ": the plan has other nodes than that of " + sequence.names.front(),
                    "Both must be of one model: plan them from one profile.");
  }
  return sequence;
}

std::vector<PricedGeneration> price(const PlanSequence& sequence, int64_t minibatches, const Inputs& inputs) {
  return price_generations(sequence.plans, sequence.names, sequence.firsts, minibatches, inputs.profile,
                           inputs.topology, inputs.request);
}

TextTable sequence_table(const std::vector<PricedGeneration>& generations) {
  constexpr auto kLeft = TableColumn::Side::kLeft;
  constexpr auto kRight = TableColumn::Side::kRight;
  TextTable table({{"from"},
                   {"plan", kLeft},
                   {"schedule", kLeft, 4},
                   {"ranks", kRight, 5},
                   {"minibatches", kRight, 3},
                   {"each"},
                   {"fill, drain", kRight, 2},
                   {"moved"},
                   {"move takes", kRight, 1}});
  for (const PricedGeneration& now : generations) {
    const bool first = now.first_minibatch == 0;
    table.add({std::to_string(now.first_minibatch), shape_and_recompute_text(now.plan), now.plan.schedule,
               std::to_string(now.plan.world_size), std::to_string(now.minibatches),
               format_seconds(now.plan.predicted->minibatch_seconds), format_seconds(now.fill_seconds),
               first ? "-" : format_bytes(static_cast<double>(now.moved_bytes)),
               first ? "-" : format_seconds(now.move_seconds)});
  }
  return table;
}

std::string sequence_text(const std::vector<PricedGeneration>& generations, double alone_seconds) {
  double total = 0;
  int64_t minibatches = 0;
  for (const PricedGeneration& now : generations) {
    total += now.total_seconds();
    minibatches += now.minibatches;
  }
  const size_t changes = generations.size() - 1;
  return std::to_string(minibatches) + " minibatches: " + format_seconds(total) + ", of which " +
         format_seconds(change_seconds(generations)) + " go into " + std::to_string(changes) +
         (changes == 1 ? " change" : " changes") + "; under the first plan alone " +
         format_seconds(alone_seconds);
}

std::vector<PricedGeneration> print_sequence(const PlanSequence& sequence, int64_t minibatches,
                                             const Inputs& inputs, int64_t width) {
  auto generations = price(sequence, minibatches, inputs);
  const PlanSequence alone{{sequence.names[0]}, {sequence.plans[0]}, {0}};
  const double without = price(alone, minibatches, inputs)[0].seconds;
  std::cout << sequence_table(generations).text(width) << "\n"
            << wrapped(sequence_text(generations, without), width) << "\n";
  return generations;
}

void refuse_with_changes(const po::variables_map& values, const std::vector<const char*>& others) {
  for (const char* other : others) {
    if (values.count(other) == 0 || values[other].defaulted()) continue;
    throw InputError(std::string("--") + other + ": not together with --changes",
                     "Leave it out, or take the plans one by one: --plan RUN/generation-K.plan.json.");
  }
}

Simulation play(const std::vector<PricedGeneration>& generations, const Inputs& inputs) {
  Simulation all;
  double begin = 0;
  for (const PricedGeneration& now : generations) {
    begin += now.move_seconds;
    const PlanCost cost = cost_as_run(now.plan, inputs);
    const Simulation run = simulate(now.plan.schedule, shape_of(now.plan), cost.times,
                                    {now.first_minibatch, now.minibatches}, cost.shared);
    std::vector<int64_t> places;  // of this plan's ranks among all
    for (const SimulatedRank& rank : run.ranks) {
      auto known = std::find_if(all.ranks.begin(), all.ranks.end(),
                                [&](const SimulatedRank& other) { return other.number == rank.number; });
      if (known == all.ranks.end()) {
        SimulatedRank fresh;
        fresh.number = rank.number;
        fresh.placement = rank.placement;
        known = all.ranks.insert(all.ranks.end(), fresh);
      }
      known->busy_seconds += rank.busy_seconds;
      known->receive_wait_seconds += rank.receive_wait_seconds;
      known->send_wait_seconds += rank.send_wait_seconds;
      known->reduce_seconds += rank.reduce_seconds;
      known->peak_in_flight = std::max(known->peak_in_flight, rank.peak_in_flight);
      places.push_back(known - all.ranks.begin());
    }
    for (SimulatedAction action : run.actions) {
      action.rank = places[static_cast<size_t>(action.rank)];
      action.begin_seconds += begin;
      action.end_seconds += begin;
      all.actions.push_back(action);
    }
    begin += run.total_seconds;
  }
  std::stable_sort(all.actions.begin(), all.actions.end(),
                   [](const SimulatedAction& a, const SimulatedAction& b) {
                     return std::pair(a.begin_seconds, a.rank) < std::pair(b.begin_seconds, b.rank);
                   });
  all.total_seconds = begin;
  return all;
}

}  // namespace pipewright
