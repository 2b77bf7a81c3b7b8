// What one device needs for each node of a model, measured. Holds no stages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/json.h"

namespace pipewright {

struct ProfiledValue {
  std::string name;
  int64_t bytes = 0;
  bool operator==(const ProfiledValue&) const = default;
};

/// Of a minibatch.
struct PassSeconds {
  double forward_seconds = 0;
  double backward_seconds = 0;

  double sum() const { return forward_seconds + backward_seconds; }
  PassSeconds& operator+=(const PassSeconds& other);
  PassSeconds& operator-=(const PassSeconds& other);
  void scale(double factor);
};

struct ProfiledNode {
  std::string name;
  std::string layer;
  std::vector<std::string>
      inputs;  ///< values read: outputs of earlier nodes, or inputs of the graph (made by no node)
  std::vector<ProfiledValue> outputs;
  /// With gap_seconds(): of its kernels alone, one behind the other as in a captured graph.
  double forward_seconds = 0;
  double backward_input_seconds = 0;   ///< the part that gives the gradient of the inputs
  double backward_weight_seconds = 0;  ///< the part that gives the gradient of the parameters
  double spread = 0;                   ///< median absolute deviation over median, of forward + backward
  int64_t saved_bytes = 0;  ///< storage made by this node that lives until its backward (one minibatch)
  int64_t parameter_bytes = 0;
  int64_t trainable_parameter_bytes = 0;
  int64_t buffer_bytes = 0;
  std::vector<std::string> parameters;  ///< names; a name in two nodes is a tied parameter
  /// Optional keys, both or neither: what the host takes to hand the work to the device, which computes
  /// beside it.
  std::optional<double> forward_launch_seconds = {};
  std::optional<double> backward_launch_seconds = {};
  /// Optional keys, both or neither: what the device waits beside, from kernel to kernel, where the host
  /// launches each and is ahead.
  std::optional<double> forward_gap_seconds = {};
  std::optional<double> backward_gap_seconds = {};
  /// Optional key: the most that the node's forward or backward holds for itself for a while, beside values
  /// that it reads and makes, their gradients, those of its parameters, and what it saves.
  int64_t workspace_bytes = 0;
  /// Optional key: the values, read or made, whose memory the node's backward needs; of a view that is the
  /// value it is a view of.
  std::vector<std::string> keeps = {};

  double backward_seconds() const { return backward_input_seconds + backward_weight_seconds; }
  double compute_seconds() const { return forward_seconds + backward_seconds(); }
  std::optional<double> launch_seconds() const;  ///< forward and backward
  PassSeconds pass_seconds() const { return {forward_seconds, backward_seconds()}; }
  PassSeconds launch_pass() const;  ///< zeros where it is not known
  PassSeconds gap_pass() const;     ///< likewise
  bool operator==(const ProfiledNode&) const = default;
};

/// What passes take whose kernels the host launches one by one: as long as the device computes and waits from
/// kernel to kernel, or as long as launching takes, whichever is longer.
PassSeconds launched_seconds(const PassSeconds& computing, const PassSeconds& gaps,
                             const PassSeconds& launching);

/// What else an update may take, of all trainable parameters.
struct ProfiledUpdate {
  double step_in_place_seconds = 0;    ///< the update where nobody reads the old weights any more
  double gradient_add_seconds = 0;     ///< the gradients of one more minibatch, added to those before
  double gradient_copy_seconds = 0;    ///< copied to where a sum over replicas takes them
  double gradient_divide_seconds = 0;  ///< the sum of several minibatches divided by their number
  /// Of the weights' copies in bfloat16 that the update writes too (models/run/weight_copies.h): part of what
  /// it takes, and memory of every version. Optional key.
  double copied_bytes = 0;

  /// Of so much of the parameters.
  void scale(double part);
};
struct ProfiledUpdateRow {
  const char* key;
  double ProfiledUpdate::*value;
  bool bytes = false;  ///< not seconds; left out where it is 0
};
/// All that it has.
const std::vector<ProfiledUpdateRow>& profiled_update_rows();

/// The same passes while other processes make them too, each on cores of its own: what ranks of one host take
/// from each other (memory, caches).
struct ProfiledCrowd {
  int64_t ranks = 2;          ///< at a time
  double compute_factor = 1;  ///< of forward and backward, against alone
  double update_factor = 1;
  /// The same of replicas, which begin each pass and each update together: the same operators want the same
  /// of caches and memory at the same moment. With gradients copied to where they are summed, and divided;
  /// computing ends when the slowest replica's does.
  double replicas_compute_factor = 1, replicas_update_factor = 1;
  /// Optional key: of a forward and a backward that each come after a pass of another rank, as where ranks
  /// compute by turns: what the other has read and made is in the caches.
  double by_turns_compute_factor = 1;
  // Optional keys, 0: not known. What the machine's other load made of it.
  double clock_factor = 0;      ///< compute_factor by the clock: with waits for cores that others had
  double other_cores = 0;       ///< cores' worth of work that other programs did while factors were measured
  double reference_spread = 0;  ///< how much longer the slowest pass alone took than the fastest, as a part

  /// Why other programs may have a part in the factors, for people: "other programs used 0.93 cores
  /// meanwhile". "" where nothing speaks for it.
  std::string doubt() const;
};

/// The unpartitioned model, measured in one piece, for one minibatch.
struct ProfiledWhole {
  double forward_seconds = 0;
  double backward_seconds = 0;
  double step_seconds = 0;  ///< one weight update of all trainable parameters, the old ones left as they are
  std::optional<ProfiledUpdate> update = {};  ///< optional key
  std::optional<ProfiledCrowd> crowd = {};    ///< optional key
  /// Optional keys, both or neither: as those of the nodes.
  std::optional<double> forward_launch_seconds = {};
  std::optional<double> backward_launch_seconds = {};
  /// Optional key: the most that the device's allocator had given out during forward and backward, above what
  /// it had before.
  std::optional<int64_t> allocated_bytes = {};
  // Optional keys, of a device: what libraries keep of its memory from their first call on, and what a
  // minibatch of input takes there.
  std::optional<int64_t> library_bytes = {};
  std::optional<int64_t> input_bytes = {};
  /// Optional key: the same as it travels there, images as bytes.
  std::optional<int64_t> uploaded_bytes = {};
  /// Optional key: the cores of the device's host that were ours to use, for the threads that make input.
  std::optional<int64_t> host_cores = {};
  /// Optional key: how far the sum of the nodes' times may be from the true one, as a part of it
  /// (profiler/repeats.h).
  std::optional<double> known_within = {};
};

/// The device waits for the host: to be told what to do takes about as long as to do it, or longer. A
/// device's time of such work is hardly above the host's, because the device has nothing to do in between; a
/// tenth is for what jitters.
inline bool is_launch_bound(double compute_seconds, std::optional<double> launch_seconds) {
  return launch_seconds && *launch_seconds > 0 && *launch_seconds >= 0.9 * compute_seconds;
}

/// In memory only, no part of the document: what is taken as frozen (optimizer/cost/frozen_profile.h).
struct FrozenPrefix {
  int64_t layers = 0;          ///< of model_layers(); 0: nothing
  size_t nodes = 0;            ///< the first so many run forward only
  bool cached = false;         ///< what leaves them is read from a cache
  std::string profile_digest;  ///< of the profile as it was measured
};

/// The device of a profile that another program measured.
constexpr const char* kUnknownDevice = "unknown";

/// Of nodes that run one after the other.
PassSeconds launched_seconds(const std::vector<ProfiledNode>& nodes);
/// That over what the nodes compute, 1 or more.
double launched_factor(const std::vector<ProfiledNode>& nodes);

struct Profile {
  static constexpr const char* kSchema = "pipewright.profile/1";

  std::string model;              ///< SPEC
  std::string graph_digest;       ///< "" for a profile that came from elsewhere
  int64_t minibatch_samples = 0;  ///< 0 = unknown (PipeDream's graph.txt does not say)
  std::string device;
  int64_t threads = 1;
  std::vector<std::pair<std::string, std::string>>
      provenance;                   ///< what, in order: versions, CPU, date, repeats
  double input_seconds = 0;         ///< to make one minibatch of input, in one thread
  std::vector<ProfiledNode> nodes;  ///< in an order in which they can run
  ProfiledWhole whole;
  /// Optional key: digests of the profiles that it is the combination of (profiler/combined_profile.h); none
  /// of one that was measured.
  std::vector<std::string> combines;
  std::vector<std::vector<std::string>>
      together;  ///< as Graph::together: sets of nodes that one stage must hold

  FrozenPrefix frozen = {};

  double compute_seconds() const;  ///< sum over nodes, forward + backward
  /// With which operators were run in another way (models/run/device_passes.h), of a GPU; "" = not known.
  std::string device_passes() const;

  static Profile from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;  ///< unique names, inputs made before they are read
};

}  // namespace pipewright
