// Messages between GPUs over NCCL, through c10d.
#pragma once

#include <memory>

#include "models/device/cuda_plugin.h"
#include "runtime/transport/device_links.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// As CudaPlugin::make_nccl_transport.
std::unique_ptr<Transport> connect_over_nccl(c10d::Store& store, const NcclSettings& settings);

/// NCCL's, at run time: 22809 is 2.28.9.
int64_t nccl_version_at_run_time();

/// What c10d's NCCL reads from the environment, set before its first group: time-outs, and the end of a
/// process after a failure, are Pipewright's own business.
void set_nccl_environment();

}  // namespace pipewright
