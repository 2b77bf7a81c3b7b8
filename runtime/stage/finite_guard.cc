#include "runtime/stage/finite_guard.h"

#include <algorithm>
#include <cmath>

#include "runtime/stage/not_finite_error.h"
#include "runtime/update/gradient_norm.h"

namespace pipewright {

FiniteGuard::FiniteGuard(bool is_on, at::Device device, int64_t stage, const StageProgram& program,
                         Deferred& deferred)
    : is_on_(is_on), device_(device), stage_(stage), program_(program), deferred_(deferred) {}

void FiniteGuard::look_at_forward(int64_t k, const at::Tensor& loss, const std::vector<at::Tensor>& sent,
                                  const std::function<std::string()>& where) {
  if (!is_on_) return;
  if (!device_.is_cpu()) return look_at_forward_later(k, loss, sent);
  // Infinite values may be meant (masks); a NaN or a loss that is not finite is not.
  const auto broken = [](const at::Tensor& tensor) {
    return !all_finite(tensor) && tensor.isnan().any().item<bool>();
  };
  if (all_finite(loss) && std::none_of(sent.begin(), sent.end(), broken)) return;
  const std::string found = where();
  stop_at_forward(k, loss.defined() ? std::optional(loss.item<double>()) : std::nullopt, found);
}

void FiniteGuard::look_at_forward_later(int64_t k, const at::Tensor& loss,
                                        const std::vector<at::Tensor>& sent) {
  if (loss.defined()) {
    deferred_.push(loss, [this, k](const at::Tensor& on_host) {
      if (!all_finite(on_host)) stop_at_forward(k, on_host.item<double>(), "");
    });
  }
  const at::Tensor broken = any_not_finite(sent, /*nan=*/true);
  if (!broken.defined()) return;
  deferred_.push(broken, [this, k](const at::Tensor& found) {
    if (found.item<bool>()) stop_at_forward(k, std::nullopt, "");
  });
}

void FiniteGuard::look_at_backward(int64_t k, const StageGradients& gradients) {
  if (!is_on_) return;
  if (device_.is_cpu()) {
    if (!last_not_finite(gradients.received)) return;
    if (const auto weight = last_not_finite(gradients.weights)) stop_at_gradient(*weight, k, k);
    stop_at_received_gradient(k);
  }
  const at::Tensor broken = any_not_finite(gradients.received);
  if (!broken.defined()) return;
  deferred_.push(broken, [this, k](const at::Tensor& found) {
    if (found.item<bool>()) stop_at_received_gradient(k);
  });
}

void FiniteGuard::look_at_norm(const at::Tensor& square_sum, const std::vector<at::Tensor>& gradients,
                               int64_t first, int64_t last) const {
  if (!is_on_ || !square_sum.device().is_cpu() || std::isfinite(square_sum.item<double>())) return;
  if (const auto weight = last_not_finite(gradients)) stop_at_gradient(*weight, first, last);
}

void FiniteGuard::look_at_update(const UpdateRule& rule, int64_t first, int64_t last) {
  if (!is_on_) return;
  if (rule.not_finite()) stop_at_gradient(*rule.not_finite(), first, last);
  if (!rule.not_finite_on_device().defined()) return;
  deferred_.push(rule.not_finite_on_device(), [this, first, last](const at::Tensor& found) {
    if (const int64_t number = found.item<int64_t>(); number > 0)
      stop_at_gradient(static_cast<size_t>(number - 1), first, last);
  });
}

void FiniteGuard::stop_at_forward(int64_t k, std::optional<double> loss, const std::string& where) const {
  const auto text = [](double number) { return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"; };
  const std::string what =
      loss ? "the loss of minibatch " + std::to_string(k) + " is " + text(*loss) + " on stage "
           : "the forward of minibatch " + std::to_string(k) + " is not finite on stage ";
  throw NotFiniteError(what + std::to_string(stage_) + (where.empty() ? "" : ": " + where), kDivergedRemedy,
                       k, k);
}

void FiniteGuard::stop_at_received_gradient(int64_t k) const {
  throw NotFiniteError("the gradient of minibatch " + std::to_string(k) + " that stage " +
                           std::to_string(stage_) + " sends back is not finite: in the backward of its nodes",
                       kDivergedRemedy, k, k);
}

void FiniteGuard::stop_at_gradient(size_t trainable, int64_t first, int64_t last) const {
  const std::string minibatches =
      first == last ? "minibatch " + std::to_string(first)
                    : "minibatches " + std::to_string(first) + " to " + std::to_string(last);
  throw NotFiniteError("the gradient of '" + program_.parameters()[program_.trainable()[trainable]] +
                           "' in " + minibatches + " is not finite on stage " + std::to_string(stage_) +
                           ": in the backward of " + program_.reader_of(trainable) +
                           ", or of a node behind it",
                       kDivergedRemedy, first, last);
}

}  // namespace pipewright
