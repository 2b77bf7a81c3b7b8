// What takes a GPU over and over, as interference/hog_work.h takes a core.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

namespace pipewright {

/// Those of hog_kinds() that a GPU can do: "matrix", products that fill it; "copy", its memory to and fro,
/// past its caches (512 MiB).
std::vector<std::string> gpu_hog_kinds();
/// InputError for another kind: `where` says who asks.
void check_gpu_hog(const std::string& kind, const std::string& where);

/// A round of it on the device: about a millisecond of work. A round waits for the one before the last, so
/// that the device always has work and never much.
std::function<void()> gpu_hog_round(const std::string& kind, at::Device device);

}  // namespace pipewright
