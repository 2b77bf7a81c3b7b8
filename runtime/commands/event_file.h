// TensorBoard's event file: records of one number each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "graph/atomic_file.h"

namespace pipewright {

/// CRC-32C (Castagnoli), as TFRecord takes it of lengths and of data; before it is masked.
uint32_t crc32c(std::string_view bytes);

/// What TensorBoard shows of a folder. Format: TFRecord (length, masked CRC-32C of it, data, masked CRC-32C
/// of that) of `tensorflow.Event` messages, protobuf by hand: of tensorflow/core/util/event.proto and
/// framework/summary.proto only wall_time (1), step (2), file_version (3) and summary (5) with its values'
/// tag (1) and simple_value (2). All errors are RunErrors.
class EventFile {
 public:
  /// "events.out.tfevents.pipewright" in `folder`, which is there: what is written again takes its place.
  EventFile(const std::filesystem::path& folder, double wall_seconds);
  /// A number of a step, kept as a float32. `wall_seconds`: Unix time.
  void add(double wall_seconds, int64_t step, std::string_view tag, double value);
  /// Without it nothing is left.
  void commit();

 private:
  void record(const std::string& event);
  void flush();

  AtomicFile file_;
  std::string waiting_;
};

}  // namespace pipewright
