// The device that a program computes on. CUDA comes from a plug-in that is opened only when it is asked for:
// the programs link none of its libraries.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pipewright {

class CudaPlugin;  // models/device/cuda_plugin.h

/// The device of this name, ready to be used. A bare "cuda" is device `local_rank` modulo their number: the
/// ranks of a host take turns. InputError that begins with `where` and names what is missing: the plug-in, a
/// library that it needs, the driver, any device, or the device of that number.
at::Device open_device(const std::string& name, const std::string& where, int64_t local_rank = 0);

/// Opens the plug-in, once a process, before LibTorch is first asked whether there is CUDA; the driver may be
/// missing. InputError as above.
CudaPlugin& cuda_plugin(const std::string& where);

/// "cpu", "cuda:0 (NVIDIA H100 80GB HBM3)".
std::string device_text(at::Device device);

/// For --version: a line each for CUDA's parts and NCCL, or one that says why there are none.
std::vector<std::string> cuda_versions();

/// Where the plug-in is looked for: where PIPEWRIGHT_CUDA_PLUGIN says, else beside the program.
std::vector<std::filesystem::path> cuda_plugin_places();

}  // namespace pipewright
