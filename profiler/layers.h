// A profile as people read it: per layer instead of per node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile.h"
#include "graph/text_table.h"

namespace pipewright {

/// All nodes that share a module path.
struct LayerCost {
  std::string name;  ///< the module path; of a node without one, the node's name
  int64_t nodes = 0;
  double forward_seconds = 0;
  double backward_input_seconds = 0;
  double backward_weight_seconds = 0;
  int64_t output_bytes = 0;  ///< values that another layer reads, or nobody (the loss)
  int64_t saved_bytes = 0;
  int64_t parameter_bytes = 0;                ///< a tied parameter counts in the first layer that reads it
  double share = 0;                           ///< of the time of all nodes
  double spread = 0;                          ///< mean of its nodes', weighted by their time
  std::optional<double> launch_seconds = {};  ///< the host's, of a profile that has it

  double backward_seconds() const { return backward_input_seconds + backward_weight_seconds; }
  double compute_seconds() const { return forward_seconds + backward_seconds(); }
  bool is_launch_bound() const { return pipewright::is_launch_bound(compute_seconds(), launch_seconds); }
};

/// In the order of their first nodes.
std::vector<LayerCost> layer_costs(const Profile& profile);

/// A value that crosses from one layer to another: positions in layer_costs().
struct LayerEdge {
  size_t from = 0;
  size_t to = 0;
  int64_t bytes = 0;
};
/// One per pair of layers; the bytes of all values between them. Ascending.
std::vector<LayerEdge> layer_edges(const Profile& profile);

/// The costs as text; the last row is the total. Of a device also the host's times, and which
/// layers they bound.
TextTable layer_table(const Profile& profile);
/// One line each, for people: the model and what it was measured on, the whole, how the nodes' sum compares
/// with it, and of a device the launch-bound layers and its memory.
std::vector<std::string> headlines(const Profile& profile);

/// layer_table() for people, in lines of `width` characters.
std::string layer_text(const Profile& profile, int64_t width = kAnyWidth);

}  // namespace pipewright
