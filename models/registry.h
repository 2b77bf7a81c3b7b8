// The built-in models.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"

namespace pipewright {

/// Options of a SPEC ("vgg16:classes=10,image=64"), read strictly: integer() and number() mark an option as known;
/// finish() is an InputError naming the nearest when one is left over.
class ModelOptions {
 public:
  ModelOptions(std::string spec, std::vector<std::pair<std::string, std::string>> options);
  int64_t integer(const std::string& name, int64_t fallback, int64_t minimum, int64_t maximum);
  double number(const std::string& name, double fallback, double minimum, double maximum);
  void finish() const;

 private:
  std::string spec_;
  std::vector<std::pair<std::string, std::string>> options_;
  std::vector<std::string> known_;
};

struct ModelRow {
  const char* name;
  Model (*build)(ModelOptions& options, int64_t batch_size);
  const char* options;  ///< for people: "classes=1000, image=224"
  const char* summary;
};
const std::vector<ModelRow>& model_rows();

/// The training graph with its loss for minibatches of `batch_size` samples; graph.name is `spec`. InputError: unknown
/// model or option (nearest match), value out of range, an image too small for the model.
Model build_model(const std::string& spec, int64_t batch_size);

}  // namespace pipewright
