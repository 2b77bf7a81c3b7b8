#include "runtime/evaluate/predictions.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "models/safetensors/safetensors.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

void check_file(const std::string& option, const std::string& file, const std::string& suffix) {
  if (file.empty()) return;
  if (fs::path(file).extension() != suffix)
    throw InputError("--" + option + " " + file + ": expected a name that ends in " + suffix);
  if (!fs::is_directory(fs::absolute(file).parent_path()))
    throw InputError("--" + option + " " + file + ": there is no such folder");
}

// Rows may be positions of samples.
std::vector<int64_t> shape_of_scores(const Graph& graph, int64_t batch_size, int64_t samples) {
  std::vector<int64_t> shape = graph.values.at(graph.outputs[1]).shape;
  shape.front() = shape.front() * samples / batch_size;
  return shape;
}

// The field "labels" of the first samples, if the data set has one.
at::Tensor labels_of(const Dataset& data, int64_t samples, uint64_t seed) {
  for (size_t field = 0; field < data.fields().size(); ++field) {
    const TensorType& type = data.fields()[field].sample_type;
    if (data.fields()[field].name != "labels" || type.dtype != "int64") continue;
    std::vector<int64_t> shape{samples};
    shape.insert(shape.end(), type.shape.begin(), type.shape.end());
    at::Tensor labels = at::empty(shape, at::kLong);
    auto* bytes = static_cast<char*>(labels.data_ptr());
    for (int64_t i = 0; i < samples; ++i) data.read(i, field, {seed, 0}, bytes + i * type.bytes());
    return labels;
  }
  return {};
}

// True if the loss is the mean of the samples' cross entropies, and nothing else.
bool is_mean_cross_entropy(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.op == "aten::cross_entropy_loss" && node.arguments.size() == 2 &&
           node.outputs == std::vector<std::string>{graph.outputs[0]};
  });
}

at::Tensor all_of(const std::map<int64_t, Scored>& minibatches, at::Tensor Scored::*part) {
  std::vector<at::Tensor> parts;
  for (const auto& [k, minibatch] : minibatches) parts.push_back(minibatch.*part);
  return at::cat(parts);
}

Json values_of(const at::Tensor& sample) {
  const at::Tensor flat = sample.flatten().contiguous();
  Json values = Json::array();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (flat.scalar_type() == at::kLong) {
      values.push_back(flat.const_data_ptr<int64_t>()[i]);
    } else {
      values.push_back(finite_or_null(flat.const_data_ptr<float>()[i]));
    }
  }
  return sample.dim() == 0 ? values[0] : values;
}

void write_classes(const std::string& file, const at::Tensor& classes, const at::Tensor& best,
                   const at::Tensor& labels) {
  AtomicFile out(file);
  for (int64_t i = 0; i < classes.size(0); ++i) {
    Json line;
    line["sample"] = i;
    line["class"] = values_of(classes[i]);
    line["score"] = values_of(best[i]);
    if (labels.defined()) line["label"] = values_of(labels[i]);
    const std::string text = line.dump() + "\n";
    out.write(text.data(), text.size());
  }
  out.commit();
}

}  // namespace

void check_predictions(const Graph& graph, const PredictionFiles& files) {
  const bool scores = graph.outputs.size() > 1 && graph.values.at(graph.outputs[1]).shape.size() > 1;
  if (files.any() && !scores) {
    throw InputError(
        "model '" + graph.name + "' gives its loss only: it has no scores to predict with",
        "Let its forward return (loss, scores), the classes in the last dimension of the scores, "
        "and export it again.");
  }
  check_file("predictions", files.scores, ".safetensors");
  check_file("classes", files.classes, ".jsonl");
}

std::vector<at::Tensor> Scored::parts() const {
  std::vector<at::Tensor> parts{classes, best};
  if (scores.defined()) parts.push_back(scores);
  return parts;
}

Scored scored(const at::Tensor& scores, bool whole) {
  const at::Tensor floats = scores.to(at::kFloat).contiguous();
  Scored result;
  result.classes = floats.argmax(-1);
  result.best = floats.gather(-1, result.classes.unsqueeze(-1)).squeeze(-1);
  if (whole) result.scores = floats;
  return result;
}

Scored empty_scored(const Graph& graph, int64_t batch_size, int64_t samples, bool whole) {
  const std::vector<int64_t> shape = shape_of_scores(graph, batch_size, samples);
  const std::vector<int64_t> positions(shape.begin(), shape.end() - 1);
  Scored result{at::empty(positions, at::kLong), at::empty(positions, at::kFloat), {}};
  if (whole) result.scores = at::empty(shape, at::kFloat);
  return result;
}

void write_predictions(const PredictionFiles& files, const Run& run, const Graph& graph, const Dataset& data,
                       const std::map<int64_t, Scored>& minibatches) {
  const at::NoGradGuard no_grad;
  int64_t samples = 0;
  for (const auto& [k, minibatch] : minibatches) samples = std::min(data.size(), (k + 1) * run.batch_size);
  at::Tensor classes = all_of(minibatches, &Scored::classes);
  at::Tensor best = all_of(minibatches, &Scored::best);
  // A row for each sample; of several positions, the row has them all.
  at::Tensor labels = labels_of(data, samples, static_cast<uint64_t>(run.seed));
  if (labels.defined() && labels.numel() != classes.numel()) labels = at::Tensor();
  std::vector<int64_t> shape = labels.defined() ? labels.sizes().vec() : classes.sizes().vec();
  classes = classes.reshape(shape);
  best = best.reshape(shape);
  if (!files.classes.empty()) write_classes(files.classes, classes, best, labels);
  if (files.scores.empty()) return;
  at::Tensor scores = all_of(minibatches, &Scored::scores);
  shape.push_back(scores.size(-1));
  scores = scores.reshape(shape);
  NamedTensors tensors{{"scores", scores}, {"classes", classes}};
  if (labels.defined()) {
    tensors.emplace_back("labels", labels);
    if (is_mean_cross_entropy(graph)) {
      tensors.emplace_back("loss", at::cross_entropy_loss(scores.reshape({-1, scores.size(-1)}),
                                                          labels.flatten(), {}, at::Reduction::None)
                                       .reshape(labels.sizes()));
    }
  }
  write_safetensors(files.scores, std::move(tensors), {{"format", "pt"}, {"model", run.model}});
}

}  // namespace pipewright
