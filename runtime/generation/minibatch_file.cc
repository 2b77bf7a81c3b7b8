#include "runtime/generation/minibatch_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "models/run/scalar_types.h"

namespace pipewright {
namespace {

at::Tensor stacked(const Run& run, const TrainingData& data, size_t field, const std::vector<int64_t>& shape,
                   at::ScalarType type) {
  const int64_t end = data.length().minibatches;
  const auto requests = [&, k = data.first_minibatch()]() mutable -> std::optional<LoadRequest> {
    return k < end ? std::optional(data.request(k++)) : std::nullopt;
  };
  const DataWorkers workers = data_workers(run.data_workers, /*computing=*/0);
  Loader loader(data.dataset(), {field}, requests, workers, minibatches_ahead(workers.count, run.batch_size));
  const at::Tensor all = at::empty(shape, type);
  for (int64_t k = 0; k < shape[0]; ++k) all[k].copy_(loader.next().front());
  return all;
}

}  // namespace

WrittenFile write_minibatches(const std::filesystem::path& file, const Job& job, const TrainingData& data) {
  std::vector<TensorSource> sources;
  const auto& inputs = job.model.graph.inputs;
  for (size_t i = 0; i < data.dataset().fields().size(); ++i) {
    const DataField& field = data.dataset().fields()[i];
    if (std::find(inputs.begin(), inputs.end(), field.name) == inputs.end()) continue;
    std::vector<int64_t> shape = {data.length().minibatches - data.first_minibatch(), job.run.batch_size};
    shape.insert(shape.end(), field.sample_type.shape.begin(), field.sample_type.shape.end());
    const at::ScalarType type = scalar_type_of(field.sample_type.dtype);
    sources.push_back({field.name, safetensors_dtype_of(type), shape,
                       [&job, &data, i, shape, type] { return stacked(job.run, data, i, shape, type); }});
  }
  return write_safetensors(file, std::move(sources),
                           {{"first_minibatch", std::to_string(data.first_minibatch())},
                            {"batch_size", std::to_string(job.run.batch_size)},
                            {"seed", std::to_string(job.run.seed)}});
}

}  // namespace pipewright
