// Devices by name, and what is said where CUDA is not there.
#include "models/device/device.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "graph/device_name.h"
#include "graph/error.h"
#include "graph/json.h"
#include "tests/support/error_of.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

namespace {

using namespace pipewright;
using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;
using pipewright::testing::error_of;

/// The plug-in is looked for here only, while this lives.
class PluginPlace {
 public:
  explicit PluginPlace(const std::string& place) { setenv("PIPEWRIGHT_CUDA_PLUGIN", place.c_str(), 1); }
  ~PluginPlace() { unsetenv("PIPEWRIGHT_CUDA_PLUGIN"); }
};

std::string error_with(const std::string& plugin, const std::string& device = "cuda") {
  const PluginPlace place(plugin);
  return error_of<InputError>([&] { open_device(device, "--device"); });
}

std::string built(const std::string& name) {
  return std::filesystem::path(PIPEWRIGHT_TEST_PLUGINS) / ("lib" + name + ".so");
}

TEST_CASE("devices are cpu, cuda and cuda:K") {
  CHECK_FALSE(device_name("cpu", "--device").cuda);
  CHECK(device_name("cuda", "--device").cuda);
  CHECK_FALSE(device_name("cuda", "--device").index);
  CHECK(device_name("cuda:12", "--device").index == 12);
  CHECK(open_device("cpu", "--device") == at::Device(at::kCPU));
  const auto error = [](const std::string& name) {
    return error_of<InputError>([&] { device_name(name, "--device"); });
  };
  CHECK(error("cdua:1") ==
        "--device: \"cdua:1\" is no device; expected cpu, cuda or cuda:K; did you mean 'cuda'?");
  CHECK_THAT(error("gpu"), StartsWith("--device: \"gpu\" is no device; expected cpu, cuda or cuda:K"));
  CHECK_THAT(error(""), StartsWith("--device: \"\" is no device"));
  CHECK(error("cpu:0") == "--device: \"cpu:0\" has a number; the CPU is 'cpu'");
  for (const char* name : {"cuda:", "cuda:x", "cuda:-1", "cuda: 1", "cuda:1000000"})
    CHECK_THAT(error(name), Contains("expected a number behind 'cuda:', such as cuda:0"));
}

TEST_CASE("without CUDA one line names what is missing: plug-in, library, driver") {
  const testing::TemporaryFolder folder;
  const std::string none = folder / "libpipewright_cuda.so";
  CHECK(error_with(none) == "--device: the plug-in for CUDA is missing: no " + none);

  write_file(none, "no library");
  CHECK_THAT(error_with(none), StartsWith("--device: the plug-in for CUDA cannot be loaded: " + none) &&
                                   Contains("file too short"));
  CHECK_THAT(
      error_with(built("pipewright_test_needs_library")),
      StartsWith(
          "--device: the plug-in for CUDA cannot be loaded: libpipewright_test_nothing.so: cannot open"));
  CHECK(error_with(built("pipewright_test_no_plugin")) ==
        "--device: " + built("pipewright_test_no_plugin") + " is no plug-in of Pipewright");
  CHECK(error_with(built("pipewright_test_other_version")) ==
        "--device: " + built("pipewright_test_other_version") + " is of another version of Pipewright");
  {
    const PluginPlace place(built("pipewright_test_no_plugin"));
    REQUIRE(cuda_versions().size() == 1);
    CHECK_THAT(cuda_versions()[0], StartsWith("CUDA: ") && EndsWith("is no plug-in of Pipewright"));
  }
  for (const char* name : {"cuda", "cuda:7"}) CHECK_THAT(error_with(none, name), StartsWith("--device: "));

  // The last one, as a plug-in stays.
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL))
    return testing::skip("this machine has a driver for CUDA");
  CHECK(error_with(built("pipewright_test_plugin")) ==
        "--device: this machine has no driver for CUDA: libcuda.so.1: cannot open shared object file: No "
        "such file or "
        "directory");
}

TEST_CASE("the plug-in is looked for beside the program") {
  const auto places = cuda_plugin_places();
  REQUIRE(places.size() == 2);
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  CHECK(places[0] == program.parent_path() / "lib" / "libpipewright_cuda.so");
  CHECK(places[1] == program / "libpipewright_cuda.so");
}

}  // namespace
