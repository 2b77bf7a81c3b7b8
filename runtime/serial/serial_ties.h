// What holds the pipelines of the reference together while they train a span.
#pragma once

#include "runtime/serial/serial_pipeline.h"

namespace pipewright {

class SerialTies {
 public:
  virtual ~SerialTies() = default;
  /// The pipelines, which are equal, have begun a span of the run.
  virtual void begin(SerialPipelines&, Span) {}
  /// The pipeline has made an update at stage s. Where others have to do something before its weights are
  /// what they will be, SerialStage::awaits_group stays set until they have.
  virtual void updated(SerialPipelines& pipelines, size_t pipeline, size_t s) = 0;
  /// All updates of the span are made, before the pipelines become equal (average_drained).
  virtual void end(SerialPipelines&) {}
};

}  // namespace pipewright
