#include "runtime/worker/crossing.h"

#include <cstdint>
#include <utility>

namespace pipewright {
namespace {

constexpr uintptr_t kRowAlignmentBytes = 64;

std::vector<MessagePart> with_samples(std::vector<MessagePart> parts, const std::vector<int64_t>& dimensions,
                                      int64_t samples) {
  for (size_t i = 0; i < parts.size(); ++i)
    if (dimensions[i] != SampleSplit::kWhole) parts[i].shape.at(static_cast<size_t>(dimensions[i])) = samples;
  return parts;
}

}  // namespace

Crossing::Crossing(const SampleSplit& split, const StageReplica& stage, int64_t other)
    : own_(stage.samples()) {
  const StageProgram& program = stage.program();
  const bool before = other < stage.stage();
  const std::vector<std::string>& names = before ? program.received() : program.sent();
  const std::vector<bool>& differentiable =
      before ? program.received_differentiable() : program.sent_differentiable();
  dimensions_ = split.dimensions_of(names);
  for (size_t i = 0; i < names.size(); ++i)
    if (differentiable[i]) gradient_dimensions_.push_back(dimensions_[i]);
  const auto& values = before ? program.received_parts() : program.sent_parts();
  const auto& gradients = before ? program.received_gradient_parts() : program.sent_gradient_parts();
  for (const SampleSplit::Piece& piece : split.pieces(stage.stage(), stage.place(), other)) {
    pieces_.push_back({piece, with_samples(values, dimensions_, piece.samples.size()),
                       with_samples(gradients, gradient_dimensions_, piece.samples.size())});
  }
}

std::vector<at::Tensor> Crossing::cut(size_t i, const std::vector<at::Tensor>& tensors,
                                      const std::vector<int64_t>& dimensions) const {
  std::vector<at::Tensor> rows;
  for (size_t t = 0; t < tensors.size(); ++t) {
    rows.push_back(rows_of(tensors[t], dimensions[t], own_, piece(i).samples));
    // Kernels give other bits for what begins elsewhere, and a transport may hand on the memory as it is.
    if (reinterpret_cast<uintptr_t>(rows.back().const_data_ptr()) % kRowAlignmentBytes != 0)
      rows.back() = rows.back().clone();
  }
  return rows;
}

std::vector<at::Tensor> Crossing::join(const std::vector<std::vector<at::Tensor>>& pieces,
                                       const std::vector<int64_t>& dimensions) {
  std::vector<at::Tensor> tensors;
  for (size_t t = 0; t < dimensions.size(); ++t) {
    std::vector<at::Tensor> parts;
    for (const std::vector<at::Tensor>& piece : pieces) parts.push_back(piece.at(t));
    tensors.push_back(joined(parts, dimensions[t]));
  }
  return tensors;
}

std::vector<at::Tensor> Crossing::values_for(size_t i, const std::vector<at::Tensor>& values) const {
  return cut(i, values, dimensions_);
}
std::vector<at::Tensor> Crossing::gradients_for(size_t i, const std::vector<at::Tensor>& gradients) const {
  return cut(i, gradients, gradient_dimensions_);
}
std::vector<at::Tensor> Crossing::join_values(const std::vector<std::vector<at::Tensor>>& pieces) const {
  return join(pieces, dimensions_);
}
std::vector<at::Tensor> Crossing::join_gradients(const std::vector<std::vector<at::Tensor>>& pieces) const {
  return join(pieces, gradient_dimensions_);
}

}  // namespace pipewright
