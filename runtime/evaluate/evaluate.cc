#include "runtime/evaluate/evaluate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "graph/error.h"
#include "models/definition/scoring.h"
#include "models/run/interpreter.h"
#include "runtime/evaluate/generate.h"
#include "runtime/generation/evaluation.h"
#include "runtime/generation/state_source.h"
#include "runtime/generation/training_data.h"
#include "runtime/messages/rank_message.h"
#include "runtime/launch/rank_session.h"
#include "runtime/stage/streams.h"

namespace pipewright {
namespace {

// Does the model make scores from this field?
bool reads(const Graph& graph, const std::string& field) {
  return graph.outputs.size() > 1 &&
         std::find(graph.inputs.begin(), graph.inputs.end(), field) != graph.inputs.end();
}

std::optional<int64_t> dimension_of_classes(const Graph& graph) {
  const auto scoring = scoring_of(graph);
  return scoring ? scoring->dimension : std::nullopt;
}

class Evaluating : private RankTask {
 public:
  Evaluating(const Job& job, const Place& place, const PredictionFiles& files);
  EvaluationResult run();

 private:
  void take(int64_t rank, RankMessage message) override;
  void prepare() override;
  void work() override;
  void close(const std::string& status) override;
  void gather();

  bool is_first() const { return session_.place().rank == 0; }

  const Job& job_;
  const PredictionFiles& files_;
  const std::optional<int64_t> classes_;  // their dimension among the scores
  const std::unique_ptr<Dataset> data_;
  RankSession session_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Evaluation> evaluation_;
  std::map<int64_t, EvaluatedMinibatch> minibatches_;  // rank 0
  double bleu_ = std::numeric_limits<double>::quiet_NaN();
  std::map<int64_t, Scored> scored_;  // by minibatch; rank 0: in the end all of them
};

Evaluating::Evaluating(const Job& job, const Place& place, const PredictionFiles& files)
    : job_(job),
      files_(files),
      classes_(dimension_of_classes(job.model.graph)),
      data_(open_evaluation_data(job.run, job.model)),
      session_(job, place) {}

EvaluationResult Evaluating::run() {
  session_.run(*this);
  if (!is_first()) return {};
  EvaluationResult result = summary_of(minibatches_);
  result.bleu = bleu_;
  return result;
}

void Evaluating::take(int64_t, RankMessage message) {
  EvaluatedMinibatch& minibatch = std::get<EvaluationPart>(message).evaluated;
  minibatches_[minibatch.minibatch] = std::move(minibatch);
}

void Evaluating::prepare() {
  TrainingRules rules;
  rules.optimizer = job_.run.optimizer;
  rules.seed = job_.run.seed;
  rules.device = job_.device;
  PW_CHECK(job_.resume || !job_.run.initial_weights.empty(), "there are no weights to evaluate");
  const auto source = start_of(job_.run, job_.model, job_.resume);
  worker_ = std::make_unique<Worker>(job_.model, job_.plan, session_.place().rank, session_.transport(),
                                     rules, source.get());
  evaluation_ = std::make_unique<Evaluation>(job_.run, job_.model, job_.plan, *data_, *worker_);
}

void Evaluating::work() {
  evaluation_->run(session_.hooks(job_.plan, job_.run.gradient_accumulation), session_.loading(),
                   [&](const EvaluatedMinibatch& done, const at::Tensor& scores) {
                     session_.control().post(EvaluationPart{0, 0, done});
                     if (files_.any())
                       scored_[done.minibatch] = scored(scores, classes_, /*whole=*/!files_.scores.empty());
                   });
  if (files_.any()) return gather();
  const auto* sequences = dynamic_cast<const GeneratedDataset*>(data_.get());
  if (sequences == nullptr || !reads(job_.model.graph, sequences->generation().input)) return;
  const auto made = generate(*evaluation_, sequences->generation(), *data_, job_.run, job_.plan, session_);
  if (is_first()) bleu_ = bleu_of(made, sequences->generation(), *data_);
}

// To rank 0, minibatch by minibatch.
void Evaluating::gather() {
  const StreamTags tags(static_cast<int64_t>(job_.plan.stages.size()));
  // Nothing else travels on this stream: behind the last stage there is no cut.
  const auto tag = [&](size_t part) {
    return tags.of(Stream::kEvaluation, static_cast<int64_t>(job_.plan.stages.size()) - 1,
                   static_cast<int64_t>(part));
  };
  for (int64_t k = 0; k < evaluation_->minibatches(); ++k) {
    const int64_t from = evaluation_->rank_of(k);
    if (from == 0 || (from != session_.place().rank && !is_first())) continue;
    session_.control().check();
    if (is_first())
      scored_[k] = empty_scored(job_.model.graph, classes_, job_.run.batch_size, evaluation_->size_of(k),
                                /*whole=*/!files_.scores.empty());
    std::vector<std::unique_ptr<Request>> requests;
    const auto parts = scored_.at(k).parts();
    for (size_t i = 0; i < parts.size(); ++i) {
      requests.push_back(is_first() ? session_.transport()->receive(parts[i], from, tag(i))
                                    : session_.transport()->send(parts[i], 0, tag(i)));
    }
    for (const auto& request : requests) request->wait();
  }
}

void Evaluating::close(const std::string& status) {
  if (!is_first() || status != "done") return;
  if (files_.any()) write_predictions(files_, job_.run, job_.model.graph, *data_, scored_);
  for (const std::string& remark : data_->remarks()) std::fprintf(stderr, "data: %s\n", remark.c_str());
}

}  // namespace

void fail_without_checkpoint(const std::filesystem::path& run_folder) {
  throw InputError("no weights to run: there is no checkpoint in " + checkpoints_of(run_folder).string() +
                       ", and no model.safetensors beside it",
                   "Name the run, --config FOLDER/run.json, or a checkpoint, --resume FOLDER. Has the run "
                   "ended, and not with --no-save?");
}

Job prepare_evaluation(const Run& run, std::optional<int64_t> world_size, c10::Device device) {
  if (run.evaluation_data.empty())
    throw InputError("there is no evaluation data", "give --evaluation-data SPEC, e.g. fashion-mnist");
  Run forward = run;
  forward.optimizer = OptimizerSettings{};
  forward.resume.clear();
  forward.adapt = "none";  // nothing is trained
  forward.sync = Run{}.sync;
  Job job = prepare_forward_job(forward, world_size, device);
  job.run.resume = run.resume;
  job.resume = find_resume(run, /*every_byte=*/false);
  if (job.resume) {
    // Of the rest the checkpoint is as it likes.
    Run alike = job.resume->manifest.run;
    alike.model = run.model;
    check_resume(*job.resume, alike, job.model);
  } else if (run.resume == "latest") {
    fail_without_checkpoint(run.output);
  } else if (run.initial_weights.empty()) {
    throw InputError(
        "no weights to run: neither --resume nor --initial-weights is given",
        "--resume latest takes the last checkpoint of the run folder that the run names; --resume "
        "FOLDER another one, --initial-weights FILE a .safetensors file.");
  }
  return job;
}

EvaluationResult evaluate(const Job& job, const Place& place, const PredictionFiles& files) {
  at::set_num_threads(static_cast<int>(job.run.threads));
  return Evaluating(job, place, files).run();
}

}  // namespace pipewright
