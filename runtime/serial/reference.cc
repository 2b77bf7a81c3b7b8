#include "runtime/serial/reference.h"

#include <memory>
#include <utility>

#include "graph/error.h"
#include "runtime/serial/serial_training.h"

namespace pipewright {

ReferenceResult train_serially(const Model& model, const Plan& plan, const TrainingRules& rules,
                               const std::vector<Span>& spans,
                               const std::function<MinibatchFields(int64_t)>& fields,
                               const std::function<std::optional<StageState>(size_t)>& start) {
  return train_serially(model, {{plan, spans}}, rules, fields, start);
}

ReferenceResult train_serially(const Model& model, const std::vector<PlanSpans>& parts,
                               const TrainingRules& rules,
                               const std::function<MinibatchFields(int64_t)>& fields,
                               const std::function<std::optional<StageState>(size_t)>& start) {
  PW_CHECK(!parts.empty(), "no plan");
  std::vector<double> losses;
  std::map<int64_t, double> norms;
  std::unique_ptr<SerialTraining> training;
  for (const PlanSpans& part : parts) {
    auto next = std::make_unique<SerialTraining>(model, part, rules);
    if (training) {
      next->go_on_from(*training);
    } else if (start) {
      next->restore(start);
    }
    training = std::move(next);
    for (const Span& span : part.spans) {
      std::map<int64_t, double> of_span;
      training->train(span, {fields, {}, [&](int64_t k, double loss) { of_span[k] = loss; }});
      for (const auto& [k, loss] : of_span) losses.push_back(loss);
      training->drain();
      norms.merge(training->take_gradient_norms());
    }
  }
  ReferenceResult result = training->result();
  result.losses = std::move(losses);
  result.gradient_norms = std::move(norms);
  return result;
}

}  // namespace pipewright
