#include "runtime/worker/stage_loaders.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "graph/error.h"

namespace pipewright {

std::function<std::optional<int64_t>()> minibatches_of(const StageReplica& stage, const StageTurns& turns,
                                                       const std::shared_ptr<const PipelineSpan>& span) {
  return [span, own = turns.minibatches_of(stage.place(), span->own()),
          next = size_t{0}]() mutable -> std::optional<int64_t> {
    return next < own.size() ? span->to_run(own[next++]) : std::nullopt;
  };
}

RequestSource requests_of(const StageReplica& stage, const StageTurns& turns,
                          const std::shared_ptr<const PipelineSpan>& span,
                          const std::function<LoadRequest(int64_t)>& request) {
  return [request, minibatches = minibatches_of(stage, turns, span)]() -> std::optional<LoadRequest> {
    const auto k = minibatches();
    return k ? std::optional(request(*k)) : std::nullopt;
  };
}

std::vector<size_t> field_numbers(const Dataset& data, const std::vector<std::string>& names) {
  std::vector<size_t> numbers;
  for (const std::string& name : names) {
    const auto& fields = data.fields();
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const DataField& f) { return f.name == name; });
    PW_CHECK(field != fields.end(), "the data set has no field '" << name << "'");
    numbers.push_back(static_cast<size_t>(field - fields.begin()));
  }
  return numbers;
}

StageLoaders::StageLoaders(const Dataset& data, const Worker& worker,
                           const std::shared_ptr<const PipelineSpan>& span,
                           const std::function<LoadRequest(int64_t)>& request, Loading loading,
                           std::optional<int64_t> but,
                           const std::function<const StageProgram&(int64_t stage)>& evaluated)
    : loading_(std::move(loading)) {
  for (size_t i = 0; i < worker.stage_count(); ++i) {
    const StageReplica& stage = worker.stage(i);
    const StageProgram& program = evaluated ? evaluated(stage.stage()) : stage.program();
    const std::vector<size_t> numbers = field_numbers(data, program.fields());
    if (numbers.empty() || stage.stage() == but) continue;
    // Where they are handed out, few: who is slow should not hold what others could train.
    const int64_t ahead = span->is_shared() ? 1 : loading_.ahead;
    const StageTurns turns = evaluated ? worker.evaluation_turns(stage) : stage.turns();
    const bool on_device = !stage.device().is_cpu();
    Source source{std::make_unique<Loader>(data, numbers, requests_of(stage, turns, span, request),
                                           loading_.workers, ahead, /*pinned=*/on_device,
                                           /*stored=*/on_device),
                  stage.device(), std::nullopt, nullptr};
    if (on_device) source.fields.emplace(data, numbers, stage.device());
    // On the host a part of a minibatch is counted, and evaluations replace fields.
    if (on_device && !turns.splits() && !evaluated && !span->is_shared())
      source.uploads = make_copy_engine(stage.device());
    sources_.emplace(stage.stage(), std::move(source));
  }
}

// Into memory that the current stream has done with, so that it may be given back like any other.
void StageLoaders::Source::upload_next() {
  Uploaded next;
  try {
    const std::vector<at::Tensor> fields = loader->next();
    const std::shared_ptr<StreamPoint> free = uploads->here();
    for (const at::Tensor& field : fields) {
      next.fields.push_back(at::empty(field.sizes(), field.options().device(device).pinned_memory(false)));
      next.end = uploads->upload(field, next.fields.back(), free);
    }
  } catch (...) {
    next.error = std::current_exception();
  }
  ahead.push_back(std::move(next));
}

std::vector<at::Tensor> StageLoaders::next(int64_t stage, int64_t k) {
  if (loading_.begin) loading_.begin(k);
  Source& source = sources_.at(stage);
  std::vector<at::Tensor> fields;
  if (!source.uploads) {
    fields = source.loader->next();
  } else {
    if (source.ahead.empty()) source.upload_next();
    Uploaded own = std::move(source.ahead.front());
    source.ahead.pop_front();
    if (own.error) std::rethrow_exception(own.error);
    while (source.ahead.size() < size_t{kUploadsAhead} && source.loader->is_ready()) source.upload_next();
    own.end->wait_on_stream();
    fields = std::move(own.fields);
  }
  if (source.fields) source.fields->make(fields);
  if (loading_.end) loading_.end();
  return fields;
}

}  // namespace pipewright
