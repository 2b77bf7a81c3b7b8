#include "models/run/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "models/device/cross_entropy_arithmetic.h"
#include "models/device/cuda_plugin.h"
#include "models/device/device.h"

namespace pipewright {
namespace {

constexpr int64_t kFewColumns = 8;  // behind scores

// The loss, and what the backward needs: CrossEntropy's log_sums and asking.
using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

CrossEntropy made_for(const at::Tensor& scores, const at::Tensor& labels, int64_t reduction,
                      int64_t ignored) {
  const at::TensorOptions floats = scores.options().dtype(at::kFloat);
  return {scores, labels, ignored, reduction, at::empty({scores.size(0)}, floats), at::empty({}, floats)};
}

at::Tensor loss_for(const CrossEntropy& of) {
  return at::empty(of.reduction == at::Reduction::None ? of.log_sums.sizes() : at::IntArrayRef(),
                   of.log_sums.options());
}

// A matrix whose first columns are to be the gradient: as wide as the one whose first columns the scores are,
// if that is little wider. A linear with zeros behind its weight then reads it as it lies
// (models/run/device_passes.cc).
at::Tensor matrix_for_gradient(const at::Tensor& scores) {
  const int64_t behind = scores.stride(0) - scores.size(1);
  const bool few = 0 <= behind && behind < kFewColumns;
  return at::empty({scores.size(0), scores.size(1) + (few ? behind : 0)}, scores.options());
}

// run(S) for the dtype S of the scores.
template <typename Run>
void dispatch(const CrossEntropy& of, const Run& run) {
  of.scores.scalar_type() == at::kFloat ? run(float{}) : run(c10::BFloat16{});
}

template <typename S>
float row_loss(const S* row, int64_t classes, int64_t label, float& log_sum_of_row) {
  TORCH_CHECK_INDEX(0 <= label && label < classes, "Target ", label, " is out of bounds.");
  ExponentialSum all;
  for (int64_t c = 0; c < classes; ++c) {
    const float score[1] = {static_cast<float>(row[c])};
    add(all, score);
  }
  log_sum_of_row = log_sum(all);
  return log_sum_of_row - static_cast<float>(row[label]);
}

Forward forward_on_cpu(const at::Tensor& scores, const at::Tensor& labels, int64_t reduction,
                       int64_t ignored) {
  const CrossEntropy of = made_for(scores, labels, reduction, ignored);
  const at::Tensor loss = loss_for(of);
  const at::Tensor losses = reduction == at::Reduction::None ? loss : at::empty_like(of.log_sums);
  const int64_t classes = scores.size(1);
  const auto* const label = labels.const_data_ptr<int64_t>();
  auto* const log_sums = of.log_sums.data_ptr<float>();
  auto* const all = losses.data_ptr<float>();
  dispatch(of, [&](auto number) {
    const auto* const first = scores.const_data_ptr<decltype(number)>();
    at::parallel_for(0, scores.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        log_sums[i] = all[i] = 0;
        if (label[i] != ignored)
          all[i] = row_loss(first + i * scores.stride(0), classes, label[i], log_sums[i]);
      }
    });
  });
  if (reduction != at::Reduction::None) {
    double sum = 0;
    double asking = 0;
    for (int64_t i = 0; i < scores.size(0); ++i) {
      sum += all[i];
      asking += label[i] != ignored ? 1 : 0;
    }
    *loss.data_ptr<float>() = static_cast<float>(reduction == at::Reduction::Mean ? sum / asking : sum);
    *of.asking.data_ptr<float>() = static_cast<float>(asking);
  }
  return {loss, of.log_sums, of.asking};
}

at::Tensor backward_on_cpu(const at::Tensor& loss_gradient, const at::Tensor& scores,
                           const at::Tensor& labels, const at::Tensor& log_sums, const at::Tensor& asking,
                           int64_t reduction, int64_t ignored) {
  const CrossEntropy of{scores, labels, ignored, reduction, log_sums, asking};
  const at::Tensor matrix = matrix_for_gradient(scores);
  const int64_t classes = scores.size(1);
  const auto* const of_loss = loss_gradient.const_data_ptr<float>();
  const auto* const label = labels.const_data_ptr<int64_t>();
  dispatch(of, [&](auto number) {
    using S = decltype(number);
    const S* const first = scores.const_data_ptr<S>();
    at::parallel_for(0, scores.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float factor = of_loss[reduction == at::Reduction::None ? i : 0];
        if (reduction == at::Reduction::Mean) factor /= *asking.const_data_ptr<float>();
        const float log_sum_of_row = log_sums.const_data_ptr<float>()[i];
        S* const to = matrix.data_ptr<S>() + i * matrix.size(1);
        std::fill(to, to + matrix.size(1), S(0.0F));
        for (int64_t c = 0; c < classes && label[i] != ignored; ++c) {
          const auto score = static_cast<float>(first[i * scores.stride(0) + c]);
          to[c] = static_cast<S>(score_gradient(score, log_sum_of_row, c == label[i], factor));
        }
      }
    });
  });
  return matrix;
}

Forward forward_on_cuda(const at::Tensor& scores, const at::Tensor& labels, int64_t reduction,
                        int64_t ignored) {
  const CrossEntropy of = made_for(scores, labels, reduction, ignored);
  const at::Tensor loss = loss_for(of);
  cuda_plugin("cuda").cross_entropy(of, loss);
  return {loss, of.log_sums, of.asking};
}

at::Tensor backward_on_cuda(const at::Tensor& loss_gradient, const at::Tensor& scores,
                            const at::Tensor& labels, const at::Tensor& log_sums, const at::Tensor& asking,
                            int64_t reduction, int64_t ignored) {
  const at::Tensor matrix = matrix_for_gradient(scores);
  cuda_plugin("cuda").cross_entropy_backward({scores, labels, ignored, reduction, log_sums, asking},
                                             loss_gradient, matrix);
  return matrix;
}

// Operators of their own, so that a device can stand in for another, and record them. The second returns the
// whole matrix.
TORCH_LIBRARY_FRAGMENT(pipewright, library) {
  library.def(
      "cross_entropy_forward(Tensor scores, Tensor labels, int reduction, int ignored) "
      "-> (Tensor, Tensor, Tensor)");
  library.def(
      "cross_entropy_backward(Tensor loss_gradient, Tensor scores, Tensor labels, Tensor log_sums, "
      "Tensor asking, int reduction, int ignored) -> Tensor");
}
TORCH_LIBRARY_IMPL(pipewright, CPU, library) {
  library.impl("cross_entropy_forward", forward_on_cpu);
  library.impl("cross_entropy_backward", backward_on_cpu);
}
TORCH_LIBRARY_IMPL(pipewright, CUDA, library) {
  library.impl("cross_entropy_forward", forward_on_cuda);
  library.impl("cross_entropy_backward", backward_on_cuda);
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& scores, const at::Tensor& labels,
                            int64_t reduction, int64_t ignored) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("pipewright::cross_entropy_forward", "")
                               .typed<decltype(forward_on_cpu)>();
    auto [loss, log_sums, asking] = op.call(scores, labels, reduction, ignored);
    context->save_for_backward({scores, labels, log_sums, asking});
    context->saved_data["reduction"] = reduction;
    context->saved_data["ignored"] = ignored;
    return loss;
  }

  static Tensors backward(Context* context, const Tensors& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "the fused cross entropy has no gradient of its gradient");
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("pipewright::cross_entropy_backward", "")
                               .typed<decltype(backward_on_cpu)>();
    const Tensors saved = context->get_saved_variables();
    const at::Tensor matrix =
        op.call(gradients[0].contiguous(), saved[0], saved[1], saved[2], saved[3],
                context->saved_data["reduction"].toInt(), context->saved_data["ignored"].toInt());
    return {matrix.narrow(1, 0, saved[0].size(1)), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

bool is_for_us(const at::Tensor& scores, const at::Tensor& labels,
               const std::optional<at::Tensor>& class_weights, int64_t reduction, double label_smoothing) {
  if (reduction < at::Reduction::None || reduction > at::Reduction::Sum) return false;
  if ((class_weights && class_weights->defined()) || label_smoothing != 0) return false;
  if (scores.dim() != 2 || scores.size(1) == 0 || labels.dim() != 1 || labels.size(0) != scores.size(0) ||
      labels.scalar_type() != at::kLong || labels.device() != scores.device())
    return false;
  // Without autocast LibTorch makes a loss of the scores' dtype.
  const bool casts = at::autocast::is_autocast_enabled(scores.device().type());
  if (scores.scalar_type() != at::kFloat && !(casts && scores.scalar_type() == at::kBFloat16)) return false;
  return !scores.is_cuda() || cuda_plugin("cuda").has_kernels();
}

}  // namespace

at::Tensor cross_entropy_fused(const at::Tensor& scores, const at::Tensor& labels,
                               const std::optional<at::Tensor>& class_weights, int64_t reduction,
                               int64_t ignored, double label_smoothing) {
  if (!is_for_us(scores, labels, class_weights, reduction, label_smoothing))
    return at::cross_entropy_loss(scores, labels, class_weights, reduction, ignored, label_smoothing);
  return CrossEntropyFunction::apply(scores.stride(1) == 1 ? scores : scores.contiguous(),
                                     labels.contiguous(), reduction, ignored);
}

}  // namespace pipewright
