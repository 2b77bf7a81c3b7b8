// What minibatches amount to is what one minibatch of all samples gives.
#include "runtime/generation/judged.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <random>

#include "models/run/loss_terms.h"

namespace pipewright::testing {

TEST_CASE(
    "evaluation: whatever a cross entropy divides by and ignores, minibatches amount to that of all "
    "samples") {
  std::mt19937 random(3);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    const int64_t samples = pick(1, 20), classes = pick(2, 8), batch = pick(1, 6);
    std::vector<int64_t> shape = {samples, classes};
    for (int64_t d = pick(0, 2); d > 0; --d) shape.push_back(pick(1, 3));
    Scoring scoring;
    scoring.classes = classes;
    scoring.dimension = 1;
    scoring.ignored = pick(0, 1) ? pick(0, classes) : -100;
    scoring.is_mean = pick(0, 3) > 0;
    scoring.is_text = pick(0, 1);
    const at::Tensor weights = pick(0, 1) ? at::rand({classes}, at::TensorOptions()) + 0.1 : at::Tensor();
    const auto reduction = scoring.is_mean ? at::Reduction::Mean : at::Reduction::Sum;
    const at::Tensor scores = at::randn(shape, at::TensorOptions());
    std::vector<int64_t> of_targets = shape;
    of_targets.erase(of_targets.begin() + 1);
    at::Tensor targets = at::randint(classes, of_targets, at::TensorOptions(at::kLong));
    targets.masked_fill_(at::rand(of_targets, at::TensorOptions()).lt(0.3), scoring.ignored);
    const auto loss = [&](const at::Tensor& of, const at::Tensor& wanted) {
      return at::cross_entropy_loss(of, wanted, weights, reduction, scoring.ignored).item<double>();
    };
    std::map<int64_t, EvaluatedMinibatch> minibatches;
    for (int64_t k = 0; k * batch < samples; ++k) {
      const int64_t size = std::min(batch, samples - k * batch);
      const at::Tensor part = scores.narrow(0, k * batch, size), wanted = targets.narrow(0, k * batch, size);
      EvaluatedMinibatch done;
      done.minibatch = k;
      done.samples = size;
      done.loss = loss(part, wanted);
      if (scoring.is_mean) {
        const DenominatorFactor labels{DenominatorFactor::Kind::kLabels, "wanted", scoring.ignored,
                                       weights.defined() ? "weights" : ""};
        const double divisor =
            number_of(labels, size, [&](const auto& name) { return name == "wanted" ? wanted : weights; });
        done.terms = {{done.loss, divisor, {divisor}}};
      } else {
        done.terms = {{done.loss}};
      }
      judge(scoring, {part, wanted}, done);
      minibatches[k] = EvaluatedMinibatch::from_json(parse_json(done.to_json().dump(), "line"));
    }
    const EvaluationResult result = summary_of(minibatches);
    const at::Tensor asks = targets.ne(scoring.ignored);
    const double count = asks.sum().item<double>();
    if (count == 0) continue;
    CHECK(result.loss == Approx(loss(scores, targets)).epsilon(1e-4));
    CHECK(result.top1 == Approx(scores.argmax(1).eq(targets).logical_and(asks).sum().item<double>() / count));
    CHECK(std::isnan(result.perplexity) == !scoring.is_text);
    if (scoring.is_text) {
      const double surprise =
          at::cross_entropy_loss(scores, targets, {}, at::Reduction::Mean, scoring.ignored).item<double>();
      CHECK(result.perplexity == Approx(std::exp(surprise)).epsilon(1e-4));
    }
    if (classes > 5) {
      const at::Tensor largest = std::get<1>(scores.topk(5, 1)).eq(targets.unsqueeze(1)).any(1);
      CHECK(result.top5 == Approx(largest.logical_and(asks).sum().item<double>() / count));
    }
  }
}

}  // namespace pipewright::testing
