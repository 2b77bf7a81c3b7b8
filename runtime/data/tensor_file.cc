// A person's own tensors: one field each, the first dimension counts samples.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "graph/error.h"
#include "models/run/scalar_types.h"
#include "models/safetensors/safetensors.h"
#include "runtime/data/sets.h"

namespace pipewright {
namespace {

class TensorFile : public Dataset {
 public:
  /// The options have been read. `samples` 0: all.
  TensorFile(const std::string& file, int64_t samples, bool in_order, const SpecOptions& options)
      : file_(file), samples_(samples), in_order_(in_order) {
    const auto fail = [&](const SafetensorsEntry& entry, const std::string& message,
                          const std::string& remedy) {
      throw InputError(file_.path().string() + ": tensor '" + entry.name + "' " + message, remedy);
    };
    if (file_.tensors().empty()) throw InputError(file_.path().string() + ": holds no tensor");
    for (const SafetensorsEntry& entry : file_.tensors()) {
      if (entry.shape.empty())
        fail(entry, "is a scalar; expected samples in dimension 0", "Each tensor is one input of the model.");
      const SafetensorsEntry& first = file_.tensors().front();
      if (entry.shape[0] != first.shape[0]) {
        fail(entry,
             "has " + std::to_string(entry.shape[0]) + " samples, '" + first.name + "' has " +
                 std::to_string(first.shape[0]),
             "Dimension 0 of all tensors of the file counts the samples.");
      }
      entries_.push_back(&entry);
    }
    std::sort(entries_.begin(), entries_.end(),
              [](const auto* a, const auto* b) { return a->name < b->name; });
    const int64_t held = entries_[0]->shape[0];
    if (samples_ > held)
      options.fail("samples", "got " + std::to_string(samples_) + ", the file has " + std::to_string(held));
    if (samples_ == 0) samples_ = held;
    if (samples_ == 0 || held > kMaximumSamples)
      throw InputError(file_.path().string() + ": has " + std::to_string(held) + " samples, expected 1.." +
                       std::to_string(kMaximumSamples));
    for (const SafetensorsEntry* entry : entries_) {
      const at::ScalarType dtype = scalar_type_of_safetensors(entry->dtype);
      fields_.push_back(
          {entry->name, {dtype_name_of(dtype), {entry->shape.begin() + 1, entry->shape.end()}}});
    }
    tensors_ = std::vector<Loaded>(entries_.size());
  }

  int64_t size() const override { return samples_; }
  const std::vector<DataField>& fields() const override { return fields_; }
  bool in_order() const override { return in_order_; }

  int64_t classes() const override {
    for (size_t field = 0; field < fields_.size(); ++field) {
      if (fields_[field].name != "labels" || fields_[field].sample_type.dtype != "int64") continue;
      const at::Tensor& labels = tensor(field);
      if (labels.numel() == 0) break;
      const auto* begin = labels.const_data_ptr<int64_t>();
      return std::max<int64_t>(1, *std::max_element(begin, begin + labels.numel()) + 1);
    }
    return 1;
  }

  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    const auto bytes = static_cast<size_t>(fields_[field].sample_type.bytes());
    const auto* data = static_cast<const char*>(tensor(field).const_data_ptr());
    std::memcpy(into, data + static_cast<size_t>(index) * bytes, bytes);
  }

 private:
  struct Loaded {
    std::once_flag once;
    at::Tensor tensor;
  };

  // Read when first asked for: a rank keeps the fields of its stage only.
  const at::Tensor& tensor(size_t field) const {
    Loaded& loaded = tensors_[field];
    std::call_once(loaded.once, [&] {
      const std::lock_guard<std::mutex> lock(file_mutex_);
      loaded.tensor = file_.read(*entries_[field]);
    });
    return loaded.tensor;
  }

  SafetensorsFile file_;
  mutable std::mutex file_mutex_;
  int64_t samples_;
  const bool in_order_;
  std::vector<const SafetensorsEntry*> entries_;  // sorted by name, as the fields
  std::vector<DataField> fields_;
  mutable std::vector<Loaded> tensors_;
};

}  // namespace

std::unique_ptr<Dataset> open_tensor_file(SpecOptions& options, const std::string&) {
  const std::string file = options.string("file", "");
  const int64_t samples = options.integer("samples", 0, 0, kMaximumSamples);
  const bool shuffles = options.choice("shuffle", "no", {"yes", "no"}) == "yes";
  options.finish();
  if (file.empty()) options.fail("file", "it is missing; expected file=FILE.safetensors");
  return std::make_unique<TensorFile>(file, samples, /*in_order=*/!shuffles, options);
}

}  // namespace pipewright
