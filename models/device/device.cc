#include "models/device/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <cstdlib>

#include "graph/device_name.h"
#include "graph/error.h"
#include "graph/json.h"
#include "models/device/cuda_plugin.h"

namespace pipewright {
namespace {

constexpr const char* kPlugin = "libpipewright_cuda.so";
constexpr const char* kEntry = "pipewright_cuda_plugin";
constexpr const char* kDriver = "libcuda.so.1";

std::string loader_error() {
  const char* const text = dlerror();
  return text ? text : "no reason given";
}

CudaPlugin& load(const std::string& where) {
  std::vector<std::string> names;
  std::filesystem::path file;
  for (const auto& place : cuda_plugin_places()) {
    std::error_code ignored;
    if (file.empty() && std::filesystem::exists(place, ignored)) file = place;
    names.push_back(place.string());
  }
  if (file.empty()) {
    throw InputError(where + ": the plug-in for CUDA is missing: no " + join(names, ", no "),
                     "Next: scripts/setup --cuda, and build again; or --device cpu.");
  }
  // RTLD_GLOBAL: what the plug-in's libraries register with LibTorch is for the whole program.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    throw InputError(
        where + ": the plug-in for CUDA cannot be loaded: " + loader_error(),
        "Likely cause: a library of CUDA or LibTorch that is not installed. Next: scripts/setup --cuda; or "
        "--device cpu.");
  }
  auto* const entry = reinterpret_cast<PipewrightCudaPlugin*>(dlsym(library, kEntry));
  CudaPlugin* const plugin = entry ? entry(kCudaPluginInterface) : nullptr;
  if (!plugin) {
    throw InputError(where + ": " + file.string() +
                         (entry ? " is of another version of Pipewright" : " is no plug-in of Pipewright"),
                     "Next: build it again, with the program.");
  }
  return *plugin;
}

void demand_driver(const std::string& where) {
  // Stays open: the device needs it.
  if (dlopen(kDriver, RTLD_LAZY | RTLD_LOCAL)) return;
  throw InputError(where + ": this machine has no driver for CUDA: " + loader_error(),
                   "Next: install NVIDIA's driver, or hand it into the container; or --device cpu.");
}

}  // namespace

std::vector<std::filesystem::path> cuda_plugin_places() {
  if (const char* set = std::getenv("PIPEWRIGHT_CUDA_PLUGIN")) return {set};
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  return {(folder / ".." / "lib" / kPlugin).lexically_normal(), folder / kPlugin};
}

CudaPlugin& cuda_plugin(const std::string& where) {
  static CudaPlugin& plugin = load(where);
  return plugin;
}

std::string device_text(at::Device device) {
  if (!device.is_cuda()) return device.str();
  return device.str() + " (" + cuda_plugin("cuda").device_name(device.index()) + ")";
}

std::vector<std::string> cuda_versions() {
  try {
    return cuda_plugin("CUDA").versions();
  } catch (const Error& error) {
    return {error.what()};
  }
}

at::Device open_device(const std::string& name, const std::string& where, int64_t local_rank) {
  const DeviceName wanted = device_name(name, where);
  if (!wanted.cuda) return at::kCPU;
  cuda_plugin(where);
  demand_driver(where);
  const int64_t count =
      c10::impl::hasDeviceGuardImpl(at::kCUDA) ? c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() : 0;
  if (count == 0) {
    throw InputError(
        where + ": there is a driver for CUDA, but no device that LibTorch can use",
        "Likely cause: no GPU, CUDA_VISIBLE_DEVICES hides it, or the driver is older than LibTorch's CUDA. "
        "Next: nvidia-smi.");
  }
  if (wanted.index && *wanted.index >= count) {
    throw InputError(where + ": there is no device " + in_quotes(name) + ": this machine has " +
                     std::to_string(count) +
                     (count == 1 ? ", cuda:0" : ", cuda:0 to cuda:" + std::to_string(count - 1)));
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(wanted.index.value_or(local_rank % count)));
}

}  // namespace pipewright
