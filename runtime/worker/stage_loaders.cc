#include "runtime/worker/stage_loaders.h"

namespace pipewright {

StageLoaders::StageLoaders(const Dataset& data, const Worker& worker, Span span,
                           const std::function<LoadRequest(int64_t)>& request, LoadObserver observer)
    : observer_(std::move(observer)) {
  for (size_t i = 0; i < worker.stage_count(); ++i) {
    const StageReplica& stage = worker.stage(i);
    std::vector<size_t> numbers;
    for (const std::string& name : stage.program().fields()) {
      for (size_t field = 0; field < data.fields().size(); ++field) {
        if (data.fields()[field].name == name) numbers.push_back(field);
      }
    }
    if (numbers.empty()) continue;
    std::vector<LoadRequest> requests;
    for (const int64_t k : stage.minibatches(span)) requests.push_back(request(k));
    loaders_[stage.stage()] = std::make_unique<Loader>(data, std::move(numbers), std::move(requests),
                                                       /*workers=*/1, /*ahead=*/4,
                                                       /*pinned=*/!stage.device().is_cpu());
  }
}

std::vector<at::Tensor> StageLoaders::next(int64_t stage, int64_t k) {
  if (observer_.begin) observer_.begin(k);
  auto fields = loaders_.at(stage)->next();
  if (observer_.end) observer_.end();
  return fields;
}

}  // namespace pipewright
