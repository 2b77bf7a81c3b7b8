#include "runtime/generation/evaluation.h"

#include <algorithm>

#include "graph/error.h"
#include "models/initialise.h"
#include "runtime/data/answers.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/split_messages.h"
#include "runtime/stage/partition.h"
#include "runtime/worker/loss_weights.h"

namespace pipewright {

Evaluation::Evaluation(const Run& run, const Model& model, const Plan& plan, const Dataset& data,
                       Worker& worker)
    : run_(run),
      model_(model),
      plan_(plan),
      shape_(evaluation_shape(shape_of(plan, run.gradient_accumulation))),
      data_(data),
      worker_(worker),
      scoring_(scoring_of(model.graph)),
      loss_terms_(model, scoring_) {
  const int64_t batch = run.batch_size;
  const auto programs = [&](int64_t size) {
    std::vector<std::pair<int64_t, std::unique_ptr<StageProgram>>> made;
    if (size == 0) return made;
    const Graph graph = judged_graph(size == batch ? model.graph : with_batch_size(model, size));
    const auto stages = partition(graph, plan);
    for (size_t i = 0; i < worker.stage_count(); ++i) {
      const int64_t stage = worker.stage(i).stage();
      made.emplace_back(
          stage, std::make_unique<StageProgram>(graph, stages, static_cast<size_t>(stage),
                                                StageProgramOptions{.keeping_buffers = graph.nodes.size(),
                                                                    .device = worker.stage(i).device()}));
    }
    return made;
  };
  full_ = programs(batch);
  rest_ = programs(samples(model, batch, data) % batch);
}

Graph Evaluation::judged_graph(const Graph& training) {
  Graph graph = evaluation_graph(training);
  judged_ = loss_terms_.reads();
  if (scoring_) judged_.insert(judged_.end(), {scoring_->targets, scoring_->scores});
  std::erase_if(judged_, [&](const std::string& name) { return graph.values.count(name) == 0; });
  for (const std::string& name : judged_) graph.outputs.push_back(name);
  return graph;
}

// A parameter or buffer is one of the last stage's as a rule. It never changes: of another stage it is what
// it was at first.
at::Tensor Evaluation::tensor_of(const std::string& name, const std::vector<at::Tensor>& handed_out) const {
  const auto judged = std::find(judged_.begin(), judged_.end(), name);
  if (judged != judged_.end()) {
    const auto behind = static_cast<size_t>(judged - judged_.begin());
    return handed_out.at(model_.graph.outputs.size() - 1 + behind).cpu();
  }
  for (size_t i = 0; i < worker_.stage_count(); ++i)
    if (const auto tensor = tensor_named(worker_.stage(i), name)) return *tensor;
  const auto& buffers = model_.graph.buffers;
  const bool is_buffer =
      std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& each) { return each.name == name; });
  return is_buffer ? initial_buffer(model_, name)
                   : initial_parameter(model_, name, static_cast<uint64_t>(run_.seed));
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

void Evaluation::run(WorkerHooks hooks, Loading loading,
                     const std::function<void(const EvaluatedMinibatch&, const at::Tensor&)>& report,
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
  StageLoaders loaders(data_, worker_, worker_.open_evaluation(span), request_of, std::move(loading), {},
                       [&](int64_t stage) -> const StageProgram& { return program(stage, 0); });

  hooks.fields = [&](int64_t stage, int64_t k) {
    auto loaded = loaders.next(stage, k);
    const auto& fields = program(stage, k).fields();
    for (size_t i = 0; override && i < fields.size(); ++i) override(k, fields[i], loaded[i]);
    return loaded;
  };
  const auto* const questions = dynamic_cast<const QuestionDataset*>(&data_);
  hooks.forward_done = [&](int64_t k, double loss, const std::vector<at::Tensor>& handed_out) {
    const at::Tensor scores = model_.graph.outputs.size() > 1 ? handed_out.at(0).cpu() : at::Tensor();
    EvaluatedMinibatch result;
    result.minibatch = k;
    result.loss = loss;
    result.samples = size_of(k);
    const auto tensor = [&](const std::string& name) { return tensor_of(name, handed_out); };
    for (LossTerm& term : loss_terms_.terms_of(result.samples, loss, tensor))
      result.terms.push_back({term.value, term.divisor, std::move(term.counts)});
    if (scoring_ && scoring_->dimension && questions == nullptr)
      judge(*scoring_, {tensor(scoring_->scores), tensor(scoring_->targets)}, result);
    if (questions && scores.defined() && scores.dim() == 3) {
      const at::Tensor rows = scores.to(at::kFloat).contiguous();
      for (int64_t i = 0; i < rows.size(0); ++i) {
        const float* begins = rows.const_data_ptr<float>() + i * rows.stride(0);
        const WindowAnswer answer = questions->answer_of(k * batch + i, begins, begins + rows.stride(1));
        result.answers.push_back({answer.question, answer.score, answer.scores.exact, answer.scores.f1});
      }
    }
    report(result, scores);
  };
  worker_.evaluate(span, program, hooks);
}

}  // namespace pipewright
