#include "optimizer/cost/frozen_profile.h"

#include <algorithm>
#include <set>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/model_layers.h"
#include "optimizer/cost/dataflow.h"

namespace pipewright {
namespace {

int64_t trainable_bytes(const Profile& profile) {
  const Dataflow flow(profile);
  int64_t bytes = 0;
  for (const int64_t of_node : flow.trainable_bytes) bytes += of_node;
  return bytes;
}

double part(double of, double whole) { return whole > 0 ? of / whole : 1; }

/// What a node of the prefix reads is frozen wherever it is read.
void freeze_tied(const Profile& measured, size_t end, Profile* frozen) {
  for (const TiedGroup& tie : tied_groups(measured)) {
    if (static_cast<size_t>(tie.readers.front()) >= end) continue;
    for (const int reader : tie.readers) {
      int64_t& bytes = frozen->nodes[static_cast<size_t>(reader)].trainable_parameter_bytes;
      bytes = std::max<int64_t>(0, bytes - tie.trainable_bytes);
    }
  }
}

}  // namespace

Profile frozen_profile(const Profile& measured, int64_t layers, bool cached, const std::string& where) {
  PW_CHECK(measured.frozen.layers == 0, "a profile with " << measured.frozen.layers << " frozen layers");
  Profile frozen = measured;
  if (layers == 0) return frozen;
  const size_t end = end_of_layers(model_layers(measured), layers, where);
  frozen.frozen = {layers, end, cached, document_digest(measured)};
  freeze_tied(measured, end, &frozen);
  double forward = 0, backward = 0, forward_left = 0, backward_left = 0;
  for (size_t v = 0; v < frozen.nodes.size(); ++v) {
    ProfiledNode& node = frozen.nodes[v];
    forward += node.forward_seconds;
    backward += node.backward_seconds();
    if (v < end) {
      node.backward_input_seconds = node.backward_weight_seconds = 0;
      if (node.backward_launch_seconds) node.backward_launch_seconds = 0;
      if (node.backward_gap_seconds) node.backward_gap_seconds = 0;
      node.saved_bytes = 0;
      node.keeps.clear();
      node.trainable_parameter_bytes = 0;
      if (cached) {
        node.forward_seconds = 0;
        if (node.forward_launch_seconds) node.forward_launch_seconds = 0;
        if (node.forward_gap_seconds) node.forward_gap_seconds = 0;
      }
    }
    forward_left += node.forward_seconds;
    backward_left += node.backward_seconds();
  }
  frozen.whole.forward_seconds *= part(forward_left, forward);
  frozen.whole.backward_seconds *= part(backward_left, backward);
  const double left =
      part(static_cast<double>(trainable_bytes(frozen)), static_cast<double>(trainable_bytes(measured)));
  frozen.whole.step_seconds *= left;
  if (frozen.whole.update) frozen.whole.update->scale(left);
  frozen.whole.allocated_bytes.reset();
  frozen.whole.known_within.reset();
  if (cached) {
    frozen.input_seconds = 0;
    std::vector<std::string> prefix;
    for (size_t v = 0; v < end; ++v) prefix.push_back(frozen.nodes[v].name);
    if (prefix.size() > 1) frozen.together.push_back(std::move(prefix));
  }
  return frozen;
}

int64_t frozen_value_bytes(const Profile& measured, int64_t layers, const std::string& where) {
  const auto end = static_cast<int>(end_of_layers(model_layers(measured), layers, where));
  int64_t bytes = 0;
  for (const DataflowValue& value : Dataflow(measured).values)
    if (value.producer < end && !value.readers.empty() && value.readers.back() >= end) bytes += value.bytes;
  return bytes;
}

std::string measured_digest(const Profile& profile) {
  return profile.frozen.layers > 0 ? profile.frozen.profile_digest : document_digest(profile);
}

}  // namespace pipewright
