// Pipelines of the reference that average their weights with each other: in groups while they train, all of
// them when they have drained.
#pragma once

#include <map>
#include <vector>

#include "runtime/groups/group_log.h"
#include "runtime/serial/serial_ties.h"

namespace pipewright {

/// Which updates of which pipelines are averaged with each other, at one stage after the other.
class SerialGroups : public SerialTies {
 public:
  /// `groups`: none where pipelines have no groups. InputError if one has a member that
  /// is no pipeline.
  SerialGroups(GroupsByStage groups, size_t pipelines);

  /// The pipeline has made an update at stage s: it has to wait for its group, or is the last of it, and the
  /// weights of all are their mean. InputError if the groups end before.
  void updated(SerialPipelines& pipelines, size_t pipeline, size_t s) override;

 private:
  size_t next_group(size_t pipeline, size_t s);

  const GroupsByStage groups_;
  std::vector<std::map<size_t, size_t>> next_;  // by stage and pipeline: the first group that it has not had
  std::vector<std::vector<size_t>> here_;       // by stage and group: how many of its members are there
};

/// All become equal: the mean of trained weights, floating buffers and slots, the most updates.
void average_drained(SerialPipelines& pipelines);

}  // namespace pipewright
