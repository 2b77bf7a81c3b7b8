#include "runtime/serial/serial_minibatches.h"

#include <algorithm>
#include <set>
#include <string>

#include "graph/error.h"

namespace pipewright {

HandedOut handed_out_in(Span span, const PartsBySpan& parts, size_t pipelines) {
  HandedOut minibatches(pipelines);
  std::set<int64_t> left;
  for (int64_t k = span.first; k < span.end(); ++k) left.insert(k);
  const std::string where = "the span that begins with minibatch " + std::to_string(span.first);
  const auto hand_out = [&](int64_t k, int64_t pipeline) {
    if (left.erase(k) == 0)
      throw InputError(where + ": minibatch " + std::to_string(k) + " was handed out twice, or is not of it",
                       "Does it belong to another run?");
    minibatches[static_cast<size_t>(pipeline)].push_back(k);
  };
  if (const auto found = parts.find(span.first); found != parts.end()) {
    for (const auto& [pipeline, of_pipeline] : found->second) {
      if (pipeline < 0 || pipeline >= static_cast<int64_t>(pipelines))
        throw InputError(where + ": handed out to pipeline " + std::to_string(pipeline),
                         "Does it belong to another run?");
      for (const Span& part : of_pipeline)
        for (int64_t k = part.first; k < std::min(part.end(), span.end()); ++k) hand_out(k, pipeline);
    }
  }
  if (!left.empty()) {
    throw InputError(where + ": minibatch " + std::to_string(*left.begin()) + " was handed out to nobody",
                     "Was the list cut, or does it belong to another run?");
  }
  return minibatches;
}

}  // namespace pipewright
