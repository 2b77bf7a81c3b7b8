// `check`: would the plan run, on these devices?
#include <algorithm>
#include <iostream>
#include <map>
#include <optional>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/nearest.h"
#include "graph/run.h"
#include "graph/spec.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/plan_sequences.h"
#include "optimizer/commands/report.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/inference_plan.h"
#include "pages/charts.h"
#include "pages/page.h"
#include "runtime/schedule/kept_memory.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

void check_changes(const po::variables_map& values, const PlanSequence& sequence, const Inputs& inputs) {
  const int64_t minibatches = values.count("minibatches") != 0
                                  ? in_range(values, "minibatches", 1, 1000000000)
                                  : sequence.firsts.back() + 1000;
  for (size_t i = 1; i < sequence.plans.size(); ++i) {
    try {
      require_memory(sequence.plans[i],
                     evaluate_plan(sequence.plans[i], inputs.profile, inputs.topology, inputs.request),
                     inputs);
    } catch (const InfeasibleError& error) {
      throw InfeasibleError(sequence.names[i] + ": " + error.what(), error.remedy());
    } catch (const PlanError& error) {
      throw PlanError(sequence.names[i] + ": " + error.what(), error.remedy());
    }
  }
  std::cout << "changes   ok: " << sequence.plans.size() - 1 << " plans, each checked as the first\n\n";
  print_sequence(sequence, minibatches, inputs, output_width(values));
  std::cout << "\n";
}

// With --on-loss: do hosts keep copies for each other?
std::optional<bool> copies_for_losses(const po::variables_map& values) {
  const bool copies = in_range(values, "copies", 0, 1) == 1;
  if (values.count("on-loss") == 0) return std::nullopt;
  const std::string on_loss = parse_spec(values["on-loss"].as<std::string>(), "--on-loss").name;
  if (on_loss != "restart" && on_loss != "continue")
    throw InputError("--on-loss: got " + in_quotes(on_loss) + "; expected restart or continue" +
                     suggestion(on_loss, {"restart", "continue"}));
  return copies;
}

// What comes to the memory of hosts where the run goes on after a loss.
std::string kept_text(bool copies, const Plan& plan, const Prediction& prediction, const Topology& topology) {
  const auto hosts = kept_by_host(plan, prediction, topology, copies);
  const auto fullest = std::max_element(
      hosts.begin(), hosts.end(), [](const KeptOnHost& a, const KeptOnHost& b) { return a.bytes < b.bytes; });
  int64_t state = 0;
  for (const StagePrediction& stage : prediction.stages) state += kept_bytes(stage.memory);
  const int64_t pending = most_pending_states(state);
  const auto text = [&](int64_t states) {
    return format_bytes(static_cast<double>(states * fullest->bytes));
  };
  return text(1) + " of each state for lost ranks" +
         (hosts.size() == 1 ? std::string()
                            : " on the fullest of " + std::to_string(hosts.size()) + " hosts" +
                                  (copies ? ", with its neighbour's copy" : "")) +
         "; in /dev/shm " + text(2) + " of the last two, and up to " + text(2 + pending) + " while " +
         std::to_string(pending) + " more are being written";
}

/// What was found as far as it was checked.
struct Found {
  TextTable lines{{{"what", TableColumn::Side::kLeft}, {"found", TableColumn::Side::kLeft}}};
  std::optional<Prediction> prediction;  ///< with a profile
  Topology topology;                     ///< then
};

/// Memory by purpose of a rank of each stage, of all stages that it has, up to the limit if there is one.
void add_memory(Page* page, const Plan& plan, const Found& found) {
  std::map<std::vector<int64_t>, std::pair<std::string, StageMemory>> by_ranks;
  std::map<std::vector<int64_t>, int64_t> limits;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    auto& [name, memory] = by_ranks[plan.stages[s].ranks];
    name += (name.empty() ? "stage " : ", ") + std::to_string(s);
    memory += found.prediction->stages[s].memory;
    limits[plan.stages[s].ranks] = memory_limit_bytes(found.topology, plan.stages[s]);
  }
  std::vector<Bar> bars;
  for (const auto& [ranks, stage] : by_ranks) {
    const auto& [name, memory] = stage;
    const int64_t limit = limits[ranks], total = memory.total_bytes();
    Bar bar{name, {}, format_bytes(static_cast<double>(total))};
    if (limit > 0)
      bar.note +=
          " of " + format_bytes(static_cast<double>(limit)) +
          (total > limit ? ": " + format_bytes(static_cast<double>(total - limit)) + " too much" : "");
    for (const int64_t bytes : {memory.weights_bytes, memory.versions_bytes, memory.gradients_bytes,
                                memory.optimizer_bytes, memory.activations_bytes, memory.messages_bytes,
                                memory.workspace_bytes, std::max<int64_t>(0, limit - total)})
      bar.parts.push_back({static_cast<double>(bytes), format_bytes(static_cast<double>(bytes))});
    bars.push_back(std::move(bar));
  }
  page->figure(bar_chart("Memory of a rank of each stage",
                         {"weights", "versions", "gradients", "optimizer", "activations", "messages",
                          "workspace", "left of the limit"},
                         bars, Quantity::kBytes),
               "Memory of a rank of each stage, by purpose");
  page->table(memory_table(*found.prediction), "The same in numbers, of each stage");
}

/// --report. `error`: why it would not run; null: it would. A plan without stages could not be read: of
/// `file`.
std::string check_page(const Plan& plan, const std::string& file, const Found& found, const Error* error) {
  Page page((plan.stages.empty() ? file : plan.model + ", " + plan.strategy + " " + plan.shape_text()) +
            ", checked");
  page.lead(error ? std::string("It would not run: ") + error->what()
            : found.prediction
                ? "It would run on these devices."
                : "It would run by itself; whether it fits a model and devices takes a profile to say.");
  if (error && !error->remedy().empty()) page.paragraph(error->remedy());
  if (!found.lines.rows().empty())
    page.table(found.lines, error ? "What was checked before that" : "What was checked");
  if (found.prediction) add_memory(&page, plan, found);
  return page.html();
}

/// Says what it finds, and keeps it. Throws what is wrong.
void check(const po::variables_map& values, const Plan& plan, Found* found) {
  const std::optional<bool> copies = copies_for_losses(values);
  const int64_t width = output_width(values);
  const auto say = [&](const std::string& what, const std::string& text) {
    constexpr int64_t kText = 10;
    std::cout << wrapped(what + std::string(kText - what.size(), ' ') + text, width, kText) << "\n";
    found->lines.add({what, text});
  };
  const ScheduleCheck schedule = check_plan_runs(plan);
  const Span span = rehearsal_span(shape_of(plan));
  say("world", "ok: " + std::to_string(plan.world_size) + " ranks from 0 on, each with its stages");
  say("rules", "ok: schedule " + plan.schedule + " with weights " + plan.weights +
                   (plan.microbatches > 1 ? ", " + std::to_string(plan.microbatches) + " microbatches" : ""));
  say("schedule", "ok: no rank waits for ever; each of " + std::to_string(span.count) +
                      " minibatches runs once, in order, on its replica");
  int64_t versions = 0;
  int64_t in_flight = 0;
  for (const RankCheck& rank : schedule.ranks) {
    versions = std::max(versions, rank.peak_versions);
    in_flight = std::max(in_flight, rank.peak_in_flight);
  }
  say("depth",
      "ok: no rank holds more minibatches than its in_flight, none more than " + std::to_string(in_flight));
  say("versions",
      "ok: forwards find the versions of the rule; no rank holds more than " + std::to_string(versions));
  const PlanSequence sequence = read_sequence(values, plan);
  if (values.count("profile") == 0) {
    for (const char* what : {"cover", "order", "tied", "placement", "memory"})
      say(what, "not checked: no --profile");
    if (copies) say("kept", "not known: no --profile");
    if (values.count("changes") != 0) {
      say("changes", "ok: " + std::to_string(sequence.plans.size() - 1) +
                         " plans that run by themselves; not priced: no --profile");
    }
    return;
  }
  const Inputs inputs = inputs_for(values, plan, sequence.largest().world_size);
  const Prediction prediction = evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  found->prediction = prediction;
  found->topology = inputs.topology;
  say("cover", "ok: " + std::to_string(inputs.profile.nodes.size()) + " nodes, each in one stage");
  say("order", "ok: values flow to later stages only, nodes stand in the order of the profile");
  const std::string ties = ties_text(plan, inputs.profile);
  say("tied", (plan.tied_parameters.empty() ? "ok: no parameter is read by two stages"
                                            : "ok: named with the stages that have a copy") +
                  std::string(ties.empty() ? "" : ". " + ties));
  say("placement", "ok: rank r is device r of " + std::to_string(inputs.topology.device_count()));
  require_memory(plan, prediction, inputs);
  const int64_t limit = memory_limit_bytes(inputs.topology);
  say("memory",
      "ok: the fullest rank holds " + format_bytes(static_cast<double>(largest_memory(plan, prediction))) +
          " of tensors" +
          (limit == 0 ? "; no limit was given" : " of " + format_bytes(static_cast<double>(limit))));
  if (copies) say("kept", kept_text(*copies, plan, prediction, inputs.topology));
  if (values.count("changes") != 0) check_changes(values, sequence, inputs);
  if (inputs.profile.device.rfind("cpu", 0) == 0)
    say("beside", "on the CPU a process has some 200 MiB more: libraries, what kernels use");
}

}  // namespace

void run_check(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_options(&options);
  add_changes_option(&options);
  options.add_options()("minibatches", po::value<int64_t>(),
                        "of the run of --changes; default: 1000 behind the last change")(
      "on-loss", po::value<std::string>(),
      "of the run, restart or continue: what hosts keep for lost ranks; without it that is not said")(
      "copies", po::value<int64_t>()->default_value(Run().recovery.copies), "of the run, with --on-loss")(
      "report", po::value<std::string>(),
      "file.html: a page, also of a plan that would not run; without: none");
  const po::variables_map values = parse_options(
      arguments, options,
      {"pipewright-optimizer check --plan FILE [--profile FILE] "
       "[--topology FILE | --memory 16GiB] [--changes FILE]",
       "pipewright-optimizer check --plan plans/gpus=2.json --profile profile.json --memory 4GiB",
       {"plan", "profile", "topology", "memory", "report"}});
  if (values.count("report") != 0) check_page_name("--report", values["report"].as<std::string>());
  const std::string file = required(values, "plan"), text = read_file(file);
  Plan plan;
  Found found;
  const auto report = [&](const Error* error) {
    if (values.count("report") != 0)
      write_page(values["report"].as<std::string>(), check_page(plan, file, found, error));
  };
  try {
    plan = parse_document<Plan>(text, file);
    demand_training_plan(plan);
    check(values, plan, &found);
  } catch (const Error& error) {
    const bool of_plan = plan.stages.empty() || error.code() == ExitCode::kInvalidPlan ||
                         error.code() == ExitCode::kInfeasible;
    if (of_plan) report(&error);
    throw;
  }
  report(nullptr);
}

}  // namespace pipewright
