// Samples and indices; knows nothing of stages.
//
// Sample i of minibatch k is a pure function of (seed, epoch, k, i): every rank can load, on its own, just
// the fields that its stage reads, so nothing is relayed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/spec.h"

namespace pipewright {

/// What makes float32 of bytes: (byte / 255 - mean) / deviation, each of the three rounded to float32.
struct Normalisation {
  std::vector<float> mean, deviation;  ///< of each channel
};

/// One named tensor of a sample: "images" float32 (1, 28, 28), "labels" int64 ().
struct DataField {
  std::string name;
  TensorType sample_type;  ///< without the batch dimension, as graphs read it
  /// The set stores bytes: float32 (channels, ...) is made of them (runtime/data/normalised.h).
  std::optional<Normalisation> normalisation = {};

  TensorType stored_type() const {
    return normalisation ? TensorType{"uint8", sample_type.shape} : sample_type;
  }
};

/// Identifies the randomness of one visit of a sample (crop, flip): equal keys give equal bytes.
struct SampleKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
};

/// A data set. All methods are safe to call from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;  ///< samples
  virtual const std::vector<DataField>& fields() const = 0;
  virtual int64_t classes() const = 0;             ///< labels lie in [0, classes)
  virtual bool in_order() const { return false; }  ///< training takes the samples as they stand, not shuffled
  /// What differs from visit to visit of a sample, and what to give to the set for it not to: "random crops
  /// and flips (crop=centre, flip=no)". "": read() does not depend on its key.
  virtual std::string augmentation() const { return ""; }
  /// Writes sample `index`'s field number `field` as it is stored to `into` (stored_type().bytes() bytes,
  /// aligned for its dtype and no more). A pure function of its arguments: the same bytes from any thread,
  /// rank and run. RunError names the file when a sample cannot be read.
  virtual void read(int64_t index, size_t field, SampleKey key, void* into) const = 0;
  /// One line per thing worth telling after the run: "3 corrupt images replaced: ...". May be empty.
  virtual std::vector<std::string> remarks() const { return {}; }
};

/// "fashion-mnist[:root=DIR,...]", "image-folder:root=DIR,...", "synthetic-images:...", "synthetic-text:...",
/// as in docs/data.md. `split` is "train" or "evaluation". InputError: unknown set or option (nearest match),
/// a value out of range, missing or malformed files.
std::unique_ptr<Dataset> open_dataset(const std::string& spec, const std::string& split);

/// One kind of data set. To add one: a file with an `open` function, and a row.
struct DatasetRow {
  const char* name;
  /// Reads all its options, calls options.finish(), then opens. `split` is one of the two.
  std::unique_ptr<Dataset> (*open)(SpecOptions& options, const std::string& split);
  const char* options;  ///< for people, with defaults: "root=DIR, image=28"
  const char* summary;
};
const std::vector<DatasetRow>& dataset_rows();

/// InputError unless each input of the graph is a field of the data set with this sample shape and dtype, and
/// labels that a cross entropy of the graph reads are classes that it has scores for; names field, got,
/// expected and the likely option to change.
void check_dataset_for_graph(const Dataset& dataset, const Graph& graph, const std::string& data_spec);

}  // namespace pipewright
