#include "runtime/generation/evaluation.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>
#include <deque>

#include "graph/error.h"
#include "runtime/data/answers.h"
#include "runtime/data/sequences.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/split_messages.h"
#include "runtime/stage/partition.h"

namespace pipewright {

Evaluation::Evaluation(const Run& run, const Model& model, const Plan& plan, const Dataset& data,
                       Worker& worker)
    : run_(run),
      model_(model),
      plan_(plan),
      shape_(evaluation_shape(shape_of(plan, run.gradient_accumulation))),
      data_(data),
      worker_(worker) {
  const int64_t batch = run.batch_size;
  const auto programs = [&](int64_t size) {
    std::vector<std::pair<int64_t, std::unique_ptr<StageProgram>>> made;
    if (size == 0) return made;
    const Graph graph = evaluation_graph(size == batch ? model.graph : with_batch_size(model, size));
    const auto stages = partition(graph, plan);
    for (size_t i = 0; i < worker.stage_count(); ++i) {
      const int64_t stage = worker.stage(i).stage();
      made.emplace_back(
          stage, std::make_unique<StageProgram>(graph, stages, static_cast<size_t>(stage),
                                                StageProgramOptions{.device = worker.stage(i).device()}));
    }
    return made;
  };
  full_ = programs(batch);
  rest_ = programs(samples(model, batch, data) % batch);
}

namespace {

// Labels with fewer than `count` scores before theirs: larger ones, and equal ones of smaller classes. So the
// first is what argmax takes.
int64_t labels_among(int64_t count, const at::Tensor& scores, const at::Tensor& truth) {
  const at::Tensor rows = scores.reshape({truth.numel(), -1});
  const at::Tensor classes = at::arange(rows.size(1), truth.options());
  const at::Tensor label = truth.clamp(0, rows.size(1) - 1).unsqueeze(1);
  const at::Tensor own = rows.gather(1, label.to(at::kLong));
  const at::Tensor before = rows.gt(own).logical_or(rows.eq(own).logical_and(classes.lt(label))).sum(1);
  // A label that asks nothing is none of the classes; a score that is no number is before nothing.
  return before.lt(count)
      .logical_and(truth.eq(label.squeeze(1)))
      .logical_and(own.eq(own).squeeze(1))
      .sum()
      .item<int64_t>();
}

}  // namespace

std::unique_ptr<Loader> Evaluation::labels_read_elsewhere(
    const std::shared_ptr<const PipelineSpan>& span,
    const std::function<LoadRequest(int64_t)>& request) const {
  const auto holds = [](const auto& names) {
    return std::find(names.begin(), names.end(), "labels") != names.end();
  };
  const auto field = std::find_if(data_.fields().begin(), data_.fields().end(),
                                  [](const DataField& of) { return of.name == "labels"; });
  if (field == data_.fields().end() || !holds(model_.graph.inputs)) return nullptr;
  for (size_t i = 0; i < worker_.stage_count(); ++i) {
    const StageReplica& stage = worker_.stage(i);
    if (stage.stage() + 1 < shape_.stages() || holds(stage.program().fields())) continue;
    return std::make_unique<Loader>(data_,
                                    std::vector<size_t>{static_cast<size_t>(field - data_.fields().begin())},
                                    requests_of(stage, worker_.evaluation_turns(stage), span, request),
                                    /*workers=*/1, /*ahead=*/4);
  }
  return nullptr;
}

int64_t Evaluation::samples(const Model& model, int64_t batch_size, const Dataset& data) {
  return model.fixed_batch ? data.size() - data.size() % batch_size : data.size();
}

int64_t Evaluation::minibatches() const {
  return (samples(model_, run_.batch_size, data_) + run_.batch_size - 1) / run_.batch_size;
}

int64_t Evaluation::size_of(int64_t minibatch) const {
  return std::min(run_.batch_size, samples(model_, run_.batch_size, data_) - minibatch * run_.batch_size);
}

int64_t Evaluation::rank_of(int64_t minibatch) const {
  const auto last = static_cast<int64_t>(plan_.stages.size()) - 1;
  return rank_of_minibatch(plan_, shape_, last, minibatch);
}

void Evaluation::run(WorkerHooks hooks, LoadObserver loading,
                     const std::function<void(const EvaluatedMinibatch&, const ScoredSamples&)>& report,
                     const FieldOverride& override) {
  const int64_t batch = run_.batch_size;
  const int64_t samples = Evaluation::samples(model_, batch, data_);
  const Span span{0, minibatches()};
  const auto program = [&](int64_t stage, int64_t k) -> const StageProgram& {
    for (const auto& [number, made] : (k + 1) * batch <= samples ? full_ : rest_)
      if (number == stage) return *made;
    PW_CHECK(false, "stage " << stage << " is not of this rank");
    return *full_[0].second;
  };
  const auto request_of = [&](int64_t k) {
    LoadRequest request;
    for (int64_t i = k * batch; i < std::min(samples, (k + 1) * batch); ++i) request.indices.push_back(i);
    request.key = {static_cast<uint64_t>(run_.seed), 0};
    return request;
  };
  const auto opened = worker_.open_evaluation(span);
  const auto labels_elsewhere = labels_read_elsewhere(opened, request_of);
  StageLoaders loaders(data_, worker_, opened, request_of, std::move(loading), {}, /*evaluates=*/true);

  const auto last = static_cast<int64_t>(plan_.stages.size()) - 1;
  std::deque<at::Tensor> expected;  // labels of the last stage's forward that is running
  hooks.fields = [&](int64_t stage, int64_t k) {
    auto loaded = loaders.next(stage, k);
    const auto& fields = program(stage, k).fields();
    for (size_t i = 0; override && i < fields.size(); ++i) override(k, fields[i], loaded[i]);
    const auto labels = std::find(fields.begin(), fields.end(), "labels");
    if (stage == last && labels != fields.end())
      expected.push_back(loaded[static_cast<size_t>(labels - fields.begin())]);
    return loaded;
  };
  const auto* const questions = dynamic_cast<const QuestionDataset*>(&data_);
  hooks.forward_done = [&](int64_t k, double loss, const at::Tensor& made) {
    const at::Tensor scores = made.defined() ? made.cpu() : made;
    EvaluatedMinibatch result{k, loss, 0, 0, size_of(k)};
    ScoredSamples scored{scores, {}};
    if (labels_elsewhere) expected.push_back(labels_elsewhere->next()[0]);
    if (!expected.empty()) {
      scored.labels = expected.front();
      expected.pop_front();
      if (!scored.labels.is_floating_point())
        result.labels = scored.labels.ne(kNoLabel).sum().item<int64_t>();
    }
    if (scored.scores.defined() && scored.labels.defined()) {
      // Scores are (samples, ..., classes) or, after flattening positions, (samples x positions, classes);
      // labels lack the last.
      const at::Tensor best = scores.argmax(-1).flatten();
      const at::Tensor truth = scored.labels.flatten();
      result.correct = best.eq(truth).sum().item<int64_t>();
      if (scores.size(-1) > 5) result.among_five = labels_among(5, scores, truth);
      result.scored = result.labels >= 0 ? result.labels : truth.numel();
      if (scored.labels.dim() == 2) {
        const at::Tensor rows = scores.reshape({truth.numel(), -1}).to(at::kFloat);
        result.surprise =
            at::cross_entropy_loss(rows, truth, {}, at::Reduction::Sum, kNoLabel).item<double>();
      }
    }
    if (questions && scores.defined() && scores.dim() == 3) {
      const at::Tensor rows = scores.to(at::kFloat).contiguous();
      for (int64_t i = 0; i < rows.size(0); ++i) {
        const float* begins = rows.const_data_ptr<float>() + i * rows.stride(0);
        const WindowAnswer answer = questions->answer_of(k * batch + i, begins, begins + rows.stride(1));
        result.answers.push_back({answer.question, answer.score, answer.scores.exact, answer.scores.f1});
      }
    }
    report(result, scored);
  };
  worker_.evaluate(span, program, hooks);
}

}  // namespace pipewright
