// Preempted ranks: what a job trains under each way to go on, in the same drawn or published traces.
#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "experiments/preemptions/preempted_job.h"
#include "graph/command_line.h"
#include "graph/error.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

std::vector<double> numbers_of(const std::string& text) {
  std::vector<double> numbers;
  std::istringstream fields(text);
  for (std::string field; std::getline(fields, field, ',');) {
    char* end = nullptr;
    numbers.push_back(std::strtod(field.c_str(), &end));
    if (field.empty() || *end || !(numbers.back() > 0))
      throw InputError("--minibatch-seconds: got '" + field + "', expected seconds: 0.4,0.21,0.15");
  }
  return numbers;
}

// As far as a number beside it says otherwise, figures of Pipewright.
struct Way {
  std::string name;
  PricedJob job;
};

std::vector<Way> ways(const po::variables_map& options, const std::vector<double>& minibatch_seconds) {
  const auto ranks = static_cast<int64_t>(minibatch_seconds.size());
  PricedJob own;
  own.rules = {OnLoss::kContinue, ranks, 1, 3};
  own.minibatch_seconds = minibatch_seconds;
  own.recover_seconds = options["recover"].as<double>();
  own.copy_every = options["copy-every"].as<int64_t>();
  own.copy_share = own.copy_every ? options["copy-share"].as<double>() : 0;
  PricedJob restart = own;
  restart.rules.on_loss = OnLoss::kRestart;
  PricedJob spared = restart;
  spared.rules.ranks = std::max<int64_t>(1, ranks * 5 / 8);
  // The others have no rule that ends a job.
  PricedJob other = own;
  other.rules.most_fruitless = 1'000'000'000;
  other.copy_every = 0;
  other.copy_share = 0;
  PricedJob morphing = other, checkpoints = other;
  morphing.recover_seconds = options["morph"].as<double>();
  morphing.checkpoint_seconds = options["morph-checkpoints"].as<double>();
  checkpoints.recover_seconds = options["restart"].as<double>();
  checkpoints.drains = false;
  const std::string spares = std::to_string(ranks - spared.rules.ranks) + " spares";
  return {{"continue", own},
          {"restart", restart},
          {"restart, " + spares, spared},
          {"morphing", morphing},
          {"checkpoints", checkpoints}};
}

void compare(const std::vector<std::string>& arguments) {
  po::options_description description;
  auto add = description.add_options();
  const auto number = [&](const char* name, double value, const char* help) {
    add(name, po::value<double>()->default_value(value), help);
  };
  add("minibatch-seconds", po::value<std::string>(), "with 1, 2, ... ranks: 0.4,0.21,0.15");
  add("seeds", po::value<int64_t>()->default_value(20), "of drawn traces");
  add("trace", po::value<std::string>(), "a published one instead: milliseconds,add|remove,name");
  add("thinned", po::value<int64_t>()->default_value(4), "of its instances one in so many");
  number("hours", 24, "");
  number("every", 1200, "seconds from one preemption to the next, in the mean");
  number("another", 0.25, "chance that it takes one more, and one more, ...");
  number("absent", 2040, "seconds until a slot is there again, in the mean");
  number("recover", 2.5, "seconds from a loss until training goes on: continue, restart");
  add("copy-every", po::value<int64_t>()->default_value(20), "minibatches; 0: no copies");
  number("copy-share", 0.02, "of the time, for copies");
  number("morph", 60, "seconds of a morphing");
  number("morph-checkpoints", 180, "seconds from one of its checkpoints to the next");
  number("restart", 90, "seconds of a restart from checkpoints of every 10 minutes");
  const auto options =
      parse_options(arguments, description, "preemptions --minibatch-seconds 0.4,0.21 [options]");
  if (!options.count("minibatch-seconds"))
    throw InputError("--minibatch-seconds is missing", "experiments/preemptions/run plans and gives them");
  const auto seconds_of_minibatch = numbers_of(options["minibatch-seconds"].as<std::string>());
  for (const char* name : {"hours", "every", "absent", "recover", "morph", "morph-checkpoints", "restart"})
    if (!(options[name].as<double>() > 0))
      throw InputError(std::string("--") + name + ": expected more than 0");
  for (const char* name : {"another", "copy-share"})
    if (!(options[name].as<double>() >= 0 && options[name].as<double>() < 1))
      throw InputError(std::string("--") + name + ": expected at least 0 and less than 1");
  for (const char* name : {"seeds", "thinned"})
    if (options[name].as<int64_t>() < 1) throw InputError(std::string("--") + name + ": expected at least 1");
  if (options["copy-every"].as<int64_t>() < 0) throw InputError("--copy-every: expected at least 0");

  DrawnTrace rules;
  rules.slots = static_cast<int64_t>(seconds_of_minibatch.size());
  rules.every_seconds = options["every"].as<double>();
  rules.another = options["another"].as<double>();
  rules.absent_seconds = options["absent"].as<double>();
  std::vector<PreemptionTrace> traces;
  rules.seconds = options["hours"].as<double>() * 3600;
  if (options.count("trace")) {
    traces = {read_trace(options["trace"].as<std::string>(), rules.slots, options["thinned"].as<int64_t>())};
    rules.seconds = std::min(rules.seconds, traces[0].back().seconds);
  } else {
    for (rules.seed = 1; rules.seed <= static_cast<uint64_t>(options["seeds"].as<int64_t>()); ++rules.seed)
      traces.push_back(draw(rules));
  }
  double gone = 0;
  for (const PreemptionTrace& trace : traces)
    for (const SlotChange& change : trace)
      if (change.seconds < rules.seconds) gone += static_cast<double>(change.gone.size());
  const auto count = static_cast<double>(traces.size());
  char line[200];
  std::snprintf(line, sizeof line, "%.1f h on %ld slots, %.0f preempted in the mean of %zu traces.\n\n",
                rules.seconds / 3600, rules.slots, gone / count, traces.size());
  std::cout << line
            << "| way | goodput | worst | done again (%) | not training (%) | attempts | copies lost | job "
               "ended |\n"
            << "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const Way& way : ways(options, seconds_of_minibatch)) {
    JobFigures sum;
    double goodput = 0, worst = 1;
    for (const PreemptionTrace& trace : traces) {
      const JobFigures figures = play(trace, way.job, rules.seconds);
      goodput += figures.minibatches / figures.ideal / count;
      worst = std::min(worst, figures.minibatches / figures.ideal);
      sum.ideal += figures.ideal, sum.again += figures.again, sum.down_seconds += figures.down_seconds;
      sum.attempts += figures.attempts, sum.copies_lost += figures.copies_lost, sum.ends += figures.ends;
    }
    std::snprintf(line, sizeof line, "| %s | %.3f | %.3f | %.2f | %.2f | %.1f | %.1f | %.1f |\n",
                  way.name.c_str(), goodput, worst, 100 * sum.again / sum.ideal,
                  100 * sum.down_seconds / (count * rules.seconds), static_cast<double>(sum.attempts) / count,
                  static_cast<double>(sum.copies_lost) / count, static_cast<double>(sum.ends) / count);
    std::cout << line;
  }
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  using namespace pipewright;
  return run_program({"preemptions",
                      "Preempted ranks, in virtual time: what a job trains under each way to go on.",
                      "preemptions --minibatch-seconds 0.4,0.21,0.15",
                      {{"compare", "play and print (default)", compare}},
                      [] { return std::string(); }},
                     argc, argv);
}
