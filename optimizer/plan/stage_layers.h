// What a stage is called for people: the layers that weigh in it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"

namespace pipewright {

/// The layers of a profile, with what their nodes weigh.
class LayerWeights {
 public:
  explicit LayerWeights(const Profile& profile);

  /// The layers of which `nodes` hold a tenth or more of the time or of the parameters, in the order of their
  /// first nodes; where there is no such layer, every layer of the nodes. Nodes that the profile has not are
  /// passed over.
  std::vector<std::string> of(const std::vector<std::string>& nodes) const;

 private:
  struct Weight {
    double seconds = 0;
    int64_t parameter_bytes = 0;
  };
  std::map<std::string, const ProfiledNode*> nodes_;  ///< of the profile, which must outlive this
  std::map<std::string, Weight> layers_;
};

/// Its stages' layers named by the nodes that they hold, whatever the plan said; a stage of whose nodes the
/// profile knows no layer stays as it is.
Plan with_layers(Plan plan, const Profile& profile);

}  // namespace pipewright
