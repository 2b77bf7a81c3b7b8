// `evaluate`: what a plan that is there is expected to take.
#include <cmath>
#include <iostream>
#include <sstream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/report.h"
#include "optimizer/plan/evaluate.h"

namespace pipewright {

namespace po = boost::program_options;

void run_evaluate(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_options(&options);
  options.add_options()                                                                    //
      ("output", po::value<std::string>(), "file.json: the plan with the new prediction")  //
      ("json", po::bool_switch(), "print the plan with the new prediction instead of tables");
  const po::variables_map values =
      parse_options(arguments, options, "pipewright-optimizer evaluate --plan FILE --profile FILE");
  Plan plan = read_plan(values);
  const Inputs inputs = inputs_for(values, plan, plan.world_size);
  const std::optional<Prediction> before = plan.predicted;
  plan.predicted = evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  if (values["json"].as<bool>()) {
    std::cout << document_text(plan);
  } else {
    std::ostringstream head;
    head << shape_and_recompute_text(plan) << ": " << format_seconds(plan.predicted->minibatch_seconds)
         << " per minibatch, bound by " << plan.predicted->bottleneck << "\n";
    if (before && before->minibatch_seconds > 0) {
      const double change = 100 * (before->minibatch_seconds / plan.predicted->minibatch_seconds - 1);
      head << "The plan itself says " << format_seconds(before->minibatch_seconds);
      if (std::abs(change) > 0.1) {
        head << ": " << number_text(std::abs(change)) << " % " << (change > 0 ? "more" : "less")
             << "; it was made with another profile or other links";
      }
      head << "\n";
    }
    if (const std::string crowd = crowd_text(plan, inputs); !crowd.empty()) head << crowd << "\n";
    const int64_t width = output_width(values);
    std::cout << wrapped(head.str(), width) << "\n"
              << stage_table(plan, *plan.predicted, inputs).text(width) << "\n"
              << wrapped(memory_heading(inputs) + "\n", width) << memory_table(*plan.predicted).text(width);
  }
  if (values.count("output") != 0) write_text(values["output"].as<std::string>(), document_text(plan));
}

}  // namespace pipewright
