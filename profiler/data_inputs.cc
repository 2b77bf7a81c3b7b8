#include "profiler/data_inputs.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "graph/error.h"
#include "graph/statistics.h"
#include "profiler/other_load.h"
#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"

namespace pipewright {

DataInputs data_inputs(const std::string& data_spec, const Graph& graph, int64_t batch_size, uint64_t seed,
                       bool for_device) {
  constexpr int64_t kMinibatches = 4;  // the first one also opens files and fills caches, and does not count
  const std::unique_ptr<Dataset> dataset = open_dataset(data_spec, "train");
  check_dataset_for_graph(*dataset, graph, data_spec);
  const Sampler sampler(dataset->size(), batch_size, seed, /*shuffle=*/!dataset->in_order());
  if (sampler.minibatches_per_epoch() == 0)
    throw InputError("--data " + data_spec + " has " + std::to_string(dataset->size()) +
                     " samples; expected at least one minibatch of " + std::to_string(batch_size));

  std::vector<size_t> fields;
  for (const auto& name : graph.inputs) {
    const auto& known = dataset->fields();
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const DataField& field) { return field.name == name; });
    PW_CHECK(found != known.end(), "no field '" << name << "' after check_dataset_for_graph()");
    fields.push_back(static_cast<size_t>(found - known.begin()));
  }
  std::vector<LoadRequest> requests;
  for (int64_t k = 0; k < kMinibatches; ++k)
    requests.push_back({sampler.indices(k), {seed, sampler.epoch_of(k)}});
  Loader loader(*dataset, fields, requests, {.count = 0}, /*ahead=*/1, /*pinned=*/false,
                /*stored=*/for_device);

  std::vector<double> seconds;
  int64_t bytes = 0;
  for (int64_t k = 0; k < kMinibatches; ++k) {
    const auto start = std::chrono::steady_clock::now();
    const double waited = waited_for_core_seconds();
    const std::vector<at::Tensor> made = loader.next();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    bytes = 0;
    for (const at::Tensor& field : made) bytes += static_cast<int64_t>(field.nbytes());
    if (k > 0) seconds.push_back(std::max(0.0, took.count() - (waited_for_core_seconds() - waited)));
  }
  requests.erase(requests.begin(), requests.end() - 1);
  return {Loader(*dataset, fields, std::move(requests), {.count = 0}, /*ahead=*/0).next(),
          median(std::move(seconds)), bytes};
}

}  // namespace pipewright
