#include "runtime/update/adafactor_step.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "graph/update_rules.h"
#include "runtime/update/step_kernels.h"

namespace pipewright {
namespace {

constexpr double kLeastScale = 1e-3;       // PyTorch's eps2
constexpr double kMomentsExponent = -0.8;  // its beta2_decay

// A parameter as matrices, one behind the other. One of one dimension is one row, and so is each matrix with
// one row or one column.
struct Matrices {
  bool factored;  // else moments are kept by element
  bool several;   // dimensions: there is a mean over rows
  int64_t count = 1, rows = 1, columns = 1;

  explicit Matrices(const at::Tensor& tensor)
      : factored(is_factored(tensor.sizes().vec())), several(tensor.dim() > 1) {
    columns = several ? tensor.size(-1) * (factored ? 1 : tensor.size(-2)) : tensor.numel();
    rows = factored ? tensor.size(-2) : 1;
    count = tensor.numel() / (rows * columns);
  }
  int64_t elements() const { return count * rows * columns; }
};

// What does not depend on the numbers.
struct Scale {
  double rate;     // of the largest step of a parameter whose numbers are 1
  double keep;     // of the weight
  double moments;  // of the new squares

  explicit Scale(const AdafactorFactors& factors)
      : rate(std::min(factors.rate, 1 / std::sqrt(static_cast<double>(factors.update)))),
        keep(1 - factors.rate * factors.weight_decay),
        moments(std::pow(static_cast<double>(factors.update), kMomentsExponent)) {}
};

// On the CPU. Sums are of one row, one column or one block of rows, then of those in their order, whatever
// the number of threads.
template <typename T>
class HostStep {
 public:
  HostStep(const at::Tensor& old, const at::Tensor& gradient, const at::Tensor& slot, const at::Tensor& next,
           const AdafactorFactors& factors)
      : shape_(old),
        scale_(factors),
        old_(old.data_ptr<T>()),
        gradient_(gradient.data_ptr<T>()),
        slot_(slot.data_ptr<T>()),
        next_(next.data_ptr<T>()) {}

  void run() {
    shape_.factored ? update_factors() : update_variances();
    const auto elements = static_cast<double>(shape_.elements());
    const double weight = std::sqrt(square_sum(old_, shape_.elements()) / elements);
    const double change = std::sqrt(change_squares() / elements);
    const double rate = std::max(kLeastScale, weight) * scale_.rate / std::max(1.0, change);
    for_rows([&](int64_t row) {
      const int64_t begin = row * shape_.columns;
      adafactor_step(row_of(row), shape_.columns, old_ + begin, next_ + begin, static_cast<T>(scale_.keep),
                     static_cast<T>(rate));
    });
  }

 private:
  static constexpr T kLeast = std::numeric_limits<T>::epsilon();  // PyTorch's eps1

  // So many are one piece of work.
  int64_t block_rows() const { return std::max<int64_t>(1, kElementsPerThread / shape_.columns); }
  int64_t all_rows() const { return shape_.count * shape_.rows; }

  template <typename Do>
  void for_rows(const Do& act) const {
    at::parallel_for(0, all_rows(), block_rows(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) act(row);
    });
  }

  void approach(T& moment, T square) const {
    moment = fused(static_cast<T>(scale_.moments), square - moment, moment);
  }
  static double mean(const T* numbers, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(numbers[i]);
    return sum / static_cast<double>(count);
  }

  void update_variances() {
    at::parallel_for(0, shape_.elements(), kElementsPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) approach(slot_[i], gradient_[i] * gradient_[i]);
    });
  }

  T* rows_of(int64_t matrix) const { return slot_ + matrix * (shape_.rows + shape_.columns); }
  T* columns_of(int64_t matrix) const { return rows_of(matrix) + shape_.rows; }

  void update_factors() {
    for_rows([&](int64_t row) {
      const double squares = square_sum(gradient_ + row * shape_.columns, shape_.columns);
      approach(rows_of(row / shape_.rows)[row % shape_.rows],
               static_cast<T>(squares / static_cast<double>(shape_.columns)));
    });
    mean_rows_.resize(static_cast<size_t>(shape_.count));
    std::vector<double> sums(static_cast<size_t>(shape_.columns));
    const int64_t grain = std::max<int64_t>(1, kElementsPerThread / shape_.rows);
    for (int64_t matrix = 0; matrix < shape_.count; ++matrix) {
      const T* gradient = gradient_ + matrix * shape_.rows * shape_.columns;
      at::parallel_for(0, shape_.columns, grain, [&](int64_t begin, int64_t end) {
        std::fill(sums.begin() + begin, sums.begin() + end, 0.0);
        for (int64_t row = 0; row < shape_.rows; ++row)
          add_squares(gradient + row * shape_.columns + begin, end - begin, sums.data() + begin);
        for (int64_t i = begin; i < end; ++i)
          approach(columns_of(matrix)[i],
                   static_cast<T>(sums[static_cast<size_t>(i)] / static_cast<double>(shape_.rows)));
      });
      mean_rows_[static_cast<size_t>(matrix)] =
          std::max(static_cast<T>(mean(rows_of(matrix), shape_.rows)), kLeast);
    }
  }

  // Where a factor is one number, it is the mean of the others.
  AdafactorRow<T> row_of(int64_t row) const {
    const T* gradient = gradient_ + row * shape_.columns;
    if (shape_.factored) {
      const int64_t matrix = row / shape_.rows;
      const T part = rows_of(matrix)[row % shape_.rows] / mean_rows_[static_cast<size_t>(matrix)];
      return {gradient, columns_of(matrix), part, kLeast};
    }
    const T* variances = slot_ + row * shape_.columns;
    if (!shape_.several) return {gradient, variances, T{1}, kLeast};
    const T whole = static_cast<T>(mean(variances, shape_.columns));
    return {gradient, variances, whole / std::max(whole, kLeast), kLeast};
  }

  // Before any change is made.
  double change_squares() const {
    const int64_t blocks = (all_rows() + block_rows() - 1) / block_rows();
    std::vector<double> sums(static_cast<size_t>(blocks), 0.0);
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin * block_rows(); row < std::min(all_rows(), end * block_rows()); ++row)
        sums[static_cast<size_t>(row / block_rows())] += change_square_sum(row_of(row), shape_.columns);
    });
    double sum = 0;
    for (const double block : sums) sum += block;
    return sum;
  }

  const Matrices shape_;
  const Scale scale_;
  const T* old_;
  const T* gradient_;
  T* slot_;
  T* next_;
  std::vector<T> mean_rows_;  // by matrix, where factored; never 0
};

// One number, where the tensor is.
at::Tensor root_mean_square(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor).div_(std::sqrt(static_cast<double>(tensor.numel())));
}

void step_on_device(const at::Tensor& old, const at::Tensor& gradient, const at::Tensor& slot,
                    const at::Tensor& next, const AdafactorFactors& factors) {
  const Matrices shape(old);
  const Scale scale(factors);
  const double least = old.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                        : std::numeric_limits<float>::epsilon();
  at::Tensor change;
  if (shape.factored) {
    const at::Tensor rows = slot.narrow(-1, 0, shape.rows).unsqueeze(-1);
    const at::Tensor columns = slot.narrow(-1, shape.rows, shape.columns).unsqueeze(-2);
    const auto mean_squares = [&](int64_t dimension, int64_t size) {
      return at::linalg_vector_norm(gradient, 2, at::IntArrayRef(dimension), /*keepdim=*/true)
          .square_()
          .div_(static_cast<double>(size));
    };
    rows.lerp_(mean_squares(-1, shape.columns), scale.moments);
    columns.lerp_(mean_squares(-2, shape.rows), scale.moments);
    change = at::mul(rows.div(rows.mean({-2}, /*keepdim=*/true).clamp_min_(least)), columns);
  } else {
    slot.lerp_(at::mul(gradient, gradient), scale.moments);
    change = slot.clone();
    if (shape.several) {
      const at::Tensor mean = slot.mean({-2, -1}, /*keepdim=*/true);
      change.mul_(mean.div(mean.clamp_min(least)));
    }
  }
  change.clamp_min_(least * least).rsqrt_().mul_(gradient);
  const at::Tensor rate = root_mean_square(old).clamp_min_(kLeastScale).mul_(-scale.rate);
  change.mul_(rate.div_(root_mean_square(change).clamp_min_(1)));
  next.copy_(change.add_(old, scale.keep));
}

}  // namespace

void adafactor_step(const StepTensor& tensor, const AdafactorFactors& factors) {
  if (tensor.old.numel() == 0) return;
  const at::NoGradGuard no_grad;
  // Weights of less than 32 bits are stepped as floats.
  const at::ScalarType dtype = tensor.old.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto as_array = [dtype](const at::Tensor& any) { return any.detach().to(dtype).contiguous(); };
  const at::Tensor old = as_array(tensor.old), gradient = as_array(tensor.gradient);
  const at::Tensor slot = as_array(tensor.first), next = as_array(tensor.next);
  if (!old.is_cpu())
    step_on_device(old, gradient, slot, next, factors);
  else if (dtype == at::kDouble)
    HostStep<double>(old, gradient, slot, next, factors).run();
  else
    HostStep<float>(old, gradient, slot, next, factors).run();
  if (!slot.is_alias_of(tensor.first)) tensor.first.copy_(slot);
  if (!next.is_alias_of(tensor.next)) tensor.next.copy_(next);
  if (tensor.copy.defined()) tensor.copy.copy_(tensor.next);
}

}  // namespace pipewright
