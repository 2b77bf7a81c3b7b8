// Images that a loader makes in a second, of a data set: what a rank trains on, without the training.
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"

using namespace pipewright;

int main(int argc, char** argv) try {
  namespace options = boost::program_options;
  std::string data;
  int64_t workers = 0, batch = 0, minibatches = 0;
  options::options_description description("images: minibatches of a data set, in training's order");
  description.add_options()("help", "this text")("data", options::value(&data)->required(), "SPEC")(
      "workers", options::value(&workers)->default_value(1), "threads that make minibatches")(
      "batch-size", options::value(&batch)->default_value(64), "images of a minibatch")(
      "minibatches", options::value(&minibatches)->default_value(60), "that are timed, behind four others");
  options::variables_map given;
  options::store(options::parse_command_line(argc, argv, description), given);
  if (given.count("help") > 0) {
    std::cout << description;
    return 0;
  }
  options::notify(given);
  if (workers < 1 || batch < 1 || minibatches < 1) throw options::error("counts start at 1");

  const auto set = open_dataset(data, "train");
  const Sampler sampler(set->size(), batch, /*seed=*/0, /*shuffle=*/true);
  if (sampler.minibatches_per_epoch() < 1) throw options::error("the set is smaller than a minibatch");
  constexpr int64_t kBefore = 4;
  const auto requests = [&, k = int64_t{0}]() mutable -> std::optional<LoadRequest> {
    if (k == kBefore + minibatches) return std::nullopt;
    LoadRequest request{sampler.indices(k), {0, sampler.epoch_of(k)}};
    ++k;
    return request;
  };
  Loader loader(*set, {0, 1}, requests, {workers}, minibatches_ahead(workers, batch));
  for (int64_t k = 0; k < kBefore; ++k) loader.next();
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t k = 0; k < minibatches; ++k) loader.next();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("images/s: %.0f\n", static_cast<double>(minibatches * batch) / seconds);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "images: %s\n", error.what());
  return 2;
}
