// What a rank does, on the time lines of NVIDIA's tools.
#pragma once

#include "models/device/cuda_plugin.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

/// While alive, a range of this thread that has the action's name in the trace ("F3"). Without a tool that
/// looks, the plug-in's calls return at once.
class ActionRange {
 public:
  /// `plugin` may be null: then there is no range. Borrowed.
  ActionRange(CudaPlugin* plugin, const Action& action) : plugin_(plugin) {
    if (plugin_) plugin_->begin_range(to_text(action));
  }
  ~ActionRange() {
    if (plugin_) plugin_->end_range();
  }
  ActionRange(const ActionRange&) = delete;
  ActionRange& operator=(const ActionRange&) = delete;

 private:
  CudaPlugin* plugin_;
};

}  // namespace pipewright
