#include "runtime/evaluate/predictions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "models/definition/scoring.h"
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

// The field of the first samples, if the data set has it, with whole numbers.
at::Tensor labels_of(const Dataset& data, const std::string& name, int64_t samples, uint64_t seed) {
  for (size_t field = 0; field < data.fields().size(); ++field) {
    const TensorType& type = data.fields()[field].sample_type;
    if (data.fields()[field].name != name || type.dtype != "int64") continue;
    std::vector<int64_t> shape{samples};
    shape.insert(shape.end(), type.shape.begin(), type.shape.end());
    at::Tensor labels = at::empty(shape, at::kLong);
    auto* bytes = static_cast<char*>(labels.data_ptr());
    for (int64_t i = 0; i < samples; ++i) data.read(i, field, {seed, 0}, bytes + i * type.bytes());
    return labels;
  }
  return {};
}

// The loss is the mean of the labels' cross entropies, and nothing else.
bool is_mean_of_labels(const Scoring& scoring) {
  return scoring.is_loss && scoring.is_mean && scoring.class_weights.empty() && !scoring.smoothed;
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
  const bool scores = graph.outputs.size() > 1 && !graph.values.at(graph.outputs[1]).shape.empty();
  if (files.any() && !scores) {
    throw InputError("model '" + graph.name + "' gives its loss only: it has no scores to predict with",
                     "Let its forward return (loss, scores), and export it again.");
  }
  const auto scoring = scoring_of(graph);
  if (!files.classes.empty() && !(scoring && scoring->dimension)) {
    throw InputError("--classes: no cross entropy of the loss of model '" + graph.name +
                         "' is one of its scores, '" + graph.outputs[1] +
                         "', so nothing says which of them are classes",
                     "--predictions FILE.safetensors writes the scores as they are.");
  }
  check_file("predictions", files.scores, ".safetensors");
  check_file("classes", files.classes, ".jsonl");
}

std::vector<at::Tensor> Scored::parts() const {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : {classes, best, scores})
    if (part.defined()) parts.push_back(part);
  return parts;
}

Scored scored(const at::Tensor& scores, std::optional<int64_t> dimension, bool whole) {
  const at::Tensor floats = scores.to(at::kFloat).contiguous();
  Scored result;
  if (dimension) {
    result.classes = floats.argmax(*dimension);
    result.best = floats.gather(*dimension, result.classes.unsqueeze(*dimension)).squeeze(*dimension);
  }
  if (whole) result.scores = floats;
  return result;
}

Scored empty_scored(const Graph& graph, std::optional<int64_t> dimension, int64_t batch_size, int64_t samples,
                    bool whole) {
  std::vector<int64_t> shape = shape_of_scores(graph, batch_size, samples);
  Scored result;
  if (whole) result.scores = at::empty(shape, at::kFloat);
  if (!dimension) return result;
  shape.erase(shape.begin() + *dimension);
  result.classes = at::empty(shape, at::kLong);
  result.best = at::empty(shape, at::kFloat);
  return result;
}

void write_predictions(const PredictionFiles& files, const Run& run, const Graph& graph, const Dataset& data,
                       const std::map<int64_t, Scored>& minibatches) {
  const at::NoGradGuard no_grad;
  int64_t samples = 0;
  for (const auto& [k, minibatch] : minibatches) samples = std::min(data.size(), (k + 1) * run.batch_size);
  const auto scoring = scoring_of(graph);
  const bool has_classes = scoring && scoring->dimension;
  const std::string field = scoring && !scoring->labels.empty() ? scoring->labels : "labels";
  at::Tensor labels = labels_of(data, field, samples, static_cast<uint64_t>(run.seed));
  at::Tensor classes, best, scores;
  if (has_classes) {
    classes = all_of(minibatches, &Scored::classes);
    best = all_of(minibatches, &Scored::best);
    if (labels.defined() && labels.numel() != classes.numel()) labels = at::Tensor();
  }
  if (!files.scores.empty()) scores = all_of(minibatches, &Scored::scores);
  // A row for each sample: of positions that are rows of their own, the sample's row has them all.
  int64_t dimension = has_classes ? *scoring->dimension : 0;
  if (has_classes && labels.defined() && classes.sizes() != labels.sizes() && dimension == classes.dim()) {
    dimension = labels.dim();
    if (scores.defined()) {
      std::vector<int64_t> shape = labels.sizes().vec();
      shape.push_back(scoring->classes);
      scores = scores.reshape(shape);
    }
    classes = classes.reshape(labels.sizes());
    best = best.reshape(labels.sizes());
  }
  if (!files.classes.empty()) write_classes(files.classes, classes, best, labels);
  if (files.scores.empty()) return;
  NamedTensors tensors{{"scores", scores}};
  if (has_classes) tensors.emplace_back("classes", classes);
  if (labels.defined()) tensors.emplace_back("labels", labels);
  if (labels.defined() && has_classes && scoring->aligned && is_mean_of_labels(*scoring)) {
    const at::Tensor rows = scores.movedim(dimension, -1);
    tensors.emplace_back("loss",
                         at::cross_entropy_loss(rows.reshape({-1, scoring->classes}), labels.flatten(), {},
                                                at::Reduction::None, scoring->ignored)
                             .reshape(labels.sizes()));
  }
  write_safetensors(files.scores, std::move(tensors), {{"format", "pt"}, {"model", run.model}});
}

}  // namespace pipewright
