// `evaluate`: what a plan that is there is expected to take.
#include <cmath>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/plan_page.h"
#include "optimizer/commands/report.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/inference_plan.h"
#include "optimizer/plan/stage_layers.h"

namespace pipewright {

namespace po = boost::program_options;

namespace {

/// How far the plan's own price is from the one found now; "" where it has none.
std::string before_text(const std::optional<Prediction>& before, const Prediction& now) {
  if (!before || !(before->minibatch_seconds > 0)) return "";
  const double change = 100 * (before->minibatch_seconds / now.minibatch_seconds - 1);
  std::string text = "The plan itself says " + format_seconds(before->minibatch_seconds);
  if (std::abs(change) > 0.1)
    text += ": " + number_text(std::abs(change)) + " % " + (change > 0 ? "more" : "less") +
            "; it was made with another profile or other links";
  return text + "\n";
}

/// What is to be said of the plan, a line each.
std::string evaluation_words(const Plan& plan, const std::optional<Prediction>& before,
                             const Inputs& inputs) {
  const Prediction& now = *plan.predicted;
  if (is_for_inference(plan)) return inference_text(plan, inputs) + "\n" + before_text(before, now);
  const std::string crowd = crowd_text(plan, inputs);
  return shape_and_recompute_text(plan) + ": " + format_seconds(now.minibatch_seconds) +
         " per minibatch, bound by " + now.bottleneck + "\n" + before_text(before, now) +
         (crowd.empty() ? crowd : crowd + "\n");
}

void print_evaluation(const Plan& plan, const std::string& words, const Inputs& inputs, int64_t width) {
  const Prediction& now = *plan.predicted;
  if (is_for_inference(plan)) {
    std::cout << wrapped(words, width) << "\n" << plan_table(plan).text(width);
    return;
  }
  std::cout << wrapped(words, width) << "\n"
            << stage_table(plan, now, inputs).text(width) << "\n"
            << wrapped(memory_heading(inputs) + "\n", width) << memory_table(now).text(width);
}

}  // namespace

void run_evaluate(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_options(&options);
  options.add_options()                                                                    //
      ("output", po::value<std::string>(), "file.json: the plan with the new prediction")  //
      ("json", po::bool_switch(), "print the plan with the new prediction instead of tables")(
          "report", po::value<std::string>(), "file.html: a page; without: none");
  const po::variables_map values = parse_options(
      arguments, options,
      {"pipewright-optimizer evaluate --plan FILE --profile FILE",
       "pipewright-optimizer evaluate --plan plans/gpus=2.json --profile profile.json --bandwidths 1GB/s",
       {"plan", "profile", "topology", "bandwidths", "output", "report"}});
  if (values.count("report") != 0) check_page_name("--report", values["report"].as<std::string>());
  Plan plan = read_plan(values);
  const Inputs inputs = inputs_for(values, plan, plan.world_size);
  if (!is_for_inference(plan)) check_schedule_and_weights(plan);
  const std::optional<Prediction> before = plan.predicted;
  plan = with_layers(std::move(plan), inputs.profile);
  plan.predicted = evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  const std::string words = evaluation_words(plan, before, inputs);
  if (values["json"].as<bool>())
    std::cout << document_text(plan);
  else
    print_evaluation(plan, words, inputs, output_width(values));
  if (values.count("output") != 0) write_text(values["output"].as<std::string>(), document_text(plan));
  if (values.count("report") != 0)
    write_page(values["report"].as<std::string>(),
               plan_page(plan, inputs, words + room_text(plan, *plan.predicted, inputs.topology),
                         values[values.count("output") != 0 ? "output" : "plan"].as<std::string>()));
  require_memory(plan, *plan.predicted, inputs);
}

}  // namespace pipewright
