#include "models/run/operator_guards.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <map>
#include <stdexcept>
#include <string>

namespace pipewright {
namespace {

using Stack = std::vector<c10::IValue>;
using Sizes = std::vector<int64_t>;

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

void require(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

std::string sizes_text(at::IntArrayRef sizes) {
  std::string text = "(";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

void require_sizes(const at::Tensor& tensor, const Sizes& expected, const std::string& what) {
  require(tensor.defined() && tensor.sizes() == at::IntArrayRef(expected),
          what + " has sizes " + (tensor.defined() ? sizes_text(tensor.sizes()) : "of nothing") +
              ", expected " + sizes_text(expected));
}

/// The numbers of an integer tensor, wherever it is and however it is strided.
Sizes numbers_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.to(at::kCPU, at::kLong).contiguous();
  const auto* begin = plain.const_data_ptr<int64_t>();
  return Sizes(begin, begin + plain.numel());
}

/// `gates` blocks of rows in each weight. (input, hx, params, has_biases, num_layers, dropout, train,
/// bidirectional, batch_first); hx is a list of two in an LSTM.
void recurrent(const Stack& arguments, int64_t gates) {
  const at::Tensor& input = arguments[0].toTensor();
  const std::vector<at::Tensor> states = arguments[1].isTensor()
                                             ? std::vector<at::Tensor>{arguments[1].toTensor()}
                                             : arguments[1].toTensorVector();
  const std::vector<at::Tensor> weights = arguments[2].toTensorVector();
  const bool biases = arguments[3].toBool();
  const int64_t layers = arguments[4].toInt(), directions = arguments[7].toBool() ? 2 : 1;
  const bool long_short = gates == 4;
  require(states.size() == (long_short ? 2 : 1), "hx has " + std::to_string(states.size()) + " tensors");
  require(input.dim() == 3, "input has " + std::to_string(input.dim()) + " dimensions, expected 3");
  const auto count = static_cast<int64_t>(weights.size());
  require(layers >= 1 && layers <= count,
          "num_layers is " + std::to_string(layers) + " with " + std::to_string(count) + " weights");
  const int64_t plain = biases ? 4 : 2;
  const bool projected = long_short && count == layers * directions * (plain + 1);
  require(projected || count == layers * directions * plain, "params has " + std::to_string(count) +
                                                                 " tensors, expected " +
                                                                 std::to_string(layers * directions * plain));
  for (const at::Tensor& state : states)
    require(state.defined() && state.dim() == 3, "hx has not 3 dimensions");

  const int64_t batch = input.size(arguments[8].toBool() ? 0 : 1);
  const int64_t width = states[0].size(2), cell = states.back().size(2);
  require(projected || width == cell, "the two tensors of hx have other widths");
  require_sizes(states[0], {layers * directions, batch, width}, "hx");
  require_sizes(states.back(), {layers * directions, batch, cell}, "hx");
  size_t next = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (int64_t direction = 0; direction < directions; ++direction) {
      const std::string name = " of layer " + std::to_string(layer);
      require_sizes(weights[next++], {gates * cell, layer == 0 ? input.size(2) : directions * width},
                    "the first weight" + name);
      require_sizes(weights[next++], {gates * cell, width}, "the second weight" + name);
      for (int bias = 0; biases && bias < 2; ++bias)
        require_sizes(weights[next++], {gates * cell}, "a bias" + name);
      if (projected) require_sizes(weights[next++], {width, cell}, "the projection" + name);
    }
  }
  if (at::autocast::is_autocast_enabled(input.device().type())) return;  // it makes them alike
  for (const auto* tensors : {&states, &weights}) {
    for (const at::Tensor& tensor : *tensors)
      require(tensor.scalar_type() == input.scalar_type(), "weights, hx and input are not of one dtype");
  }
}

void lstm(const Stack& arguments) { recurrent(arguments, 4); }
void gru(const Stack& arguments) { recurrent(arguments, 3); }
void rnn(const Stack& arguments) { recurrent(arguments, 1); }

/// (weight, indices, offsets, ..., include_last_offset, ...): bag i is indices [offsets[i], offsets[i+1]).
void embedding_bag(const Stack& arguments) {
  const at::Tensor &indices = arguments[1].toTensor(), &offsets = arguments[2].toTensor();
  int64_t last = 0;
  for (const int64_t offset : numbers_of(offsets)) {
    require(last <= offset && offset <= indices.numel(), "offset " + std::to_string(offset) + " is not in " +
                                                             std::to_string(last) + ".." +
                                                             std::to_string(indices.numel()));
    last = offset;
  }
}

/// (log_probs, targets, input_lengths, target_lengths, ...): targets are padded, a row a sample, or one after
/// the other; what is padding may be any number.
void ctc_loss(const Stack& arguments) {
  const at::Tensor &scores = arguments[0].toTensor(), &targets = arguments[1].toTensor();
  require(scores.dim() >= 2, "log_probs has " + std::to_string(scores.dim()) + " dimensions");
  const int64_t classes = scores.size(-1);
  const Sizes labels = numbers_of(targets);
  const Sizes lengths =
      arguments[3].isTensor() ? numbers_of(arguments[3].toTensor()) : arguments[3].toIntVector();
  const bool padded = targets.dim() == 2;
  require(!padded || static_cast<int64_t>(lengths.size()) == targets.size(0),
          "target_lengths has " + std::to_string(lengths.size()) + " numbers for " +
              std::to_string(targets.dim() == 2 ? targets.size(0) : 0) + " rows of targets");
  const auto held = static_cast<int64_t>(labels.size());
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (padded) begin = static_cast<int64_t>(i) * targets.size(1);
    const int64_t room = padded ? targets.size(1) : held - begin;
    require(0 <= lengths[i] && lengths[i] <= room,
            "target length " + std::to_string(lengths[i]) + " is not in 0.." + std::to_string(room));
    for (int64_t j = begin; j < begin + lengths[i]; ++j) {
      const int64_t label = labels[static_cast<size_t>(j)];
      require(0 <= label && label < classes,
              "target " + std::to_string(label) + " is not in 0.." + std::to_string(classes - 1));
    }
    begin += lengths[i];
  }
}

/// (v, g, dim): a factor for each row or column.
void weight_norm(const Stack& arguments) {
  const at::Tensor &weight = arguments[0].toTensor(), &factors = arguments[1].toTensor();
  const int64_t dimension = arguments[2].toInt();
  if (dimension != 0 && dimension != weight.dim() - 1) return;  // the general way, which compares
  require(weight.numel() > 0 && factors.numel() == weight.size(dimension) &&
              factors.scalar_type() == weight.scalar_type(),
          "g has " + std::to_string(factors.numel()) + " elements, v " + sizes_text(weight.sizes()));
}

/// (self, padding)
template <size_t kLength>
void padding(const Stack& arguments) {
  const size_t length = arguments[1].toIntVector().size();
  require(length == kLength,
          "padding has " + std::to_string(length) + " numbers, expected " + std::to_string(kLength));
}

/// (query, key, value, ...)
void attention(const Stack& arguments) {
  const at::Tensor &query = arguments[0].toTensor(), &key = arguments[1].toTensor(),
                   &value = arguments[2].toTensor();
  if (query.dim() < 2 || key.dim() < 2 || value.dim() < 2)
    fail("query, key and value have two dimensions or more");
  // Called for every layer of every minibatch: the words are made where they are needed.
  if (query.size(-1) != key.size(-1))
    fail("query " + sizes_text(query.sizes()) + " and key " + sizes_text(key.sizes()) + " have other widths");
  if (key.size(-2) != value.size(-2))
    fail("key " + sizes_text(key.sizes()) + " and value " + sizes_text(value.sizes()) +
         " have other lengths");
  for (const at::Tensor* tensor : {&key, &value}) {
    if (arguments[7].toBool() && (tensor->dim() < 3 || tensor->size(-3) <= 0))
      fail("enable_gqa with key " + sizes_text(key.sizes()) + " and value " + sizes_text(value.sizes()));
  }
}

}  // namespace

OperatorGuard guard_of(const c10::FunctionSchema& schema) {
  static const std::map<std::string, OperatorGuard> guards = {
      {"aten::lstm", lstm},
      {"aten::gru", gru},
      {"aten::rnn_tanh", rnn},
      {"aten::rnn_relu", rnn},
      {"aten::ctc_loss", ctc_loss},
      {"aten::embedding_bag", embedding_bag},
      {"aten::reflection_pad1d", padding<2>},
      {"aten::reflection_pad2d", padding<4>},
      {"aten::reflection_pad3d", padding<6>},
      {"aten::replication_pad1d", padding<2>},
      {"aten::replication_pad2d", padding<4>},
      {"aten::replication_pad3d", padding<6>},
      {"aten::_weight_norm", weight_norm},
      {"aten::scaled_dot_product_attention", attention}};
  const auto found = guards.find(schema.name());
  return found == guards.end() ? nullptr : found->second;
}

}  // namespace pipewright
