// What the plug-in asks of other libraries, and what it shows of itself. Needs no GPU.
#include <dlfcn.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/skip.h"

namespace {

namespace fs = std::filesystem;

const fs::path kPlugin = PIPEWRIGHT_CUDA_PLUGIN;

// Names of dynamic symbols without their versions; `which`: "--undefined-only" or "--defined-only".
std::set<std::string> symbols(const fs::path& library, const std::string& which) {
  const std::string command = "nm -D " + which + " '" + library.string() + "'";
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 65536> buffer{};
  for (size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    text.append(buffer.data(), got);
  REQUIRE(pclose(pipe) == 0);
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(line.rfind(' ') + 1);
    names.insert(name.substr(0, name.find('@')));
  }
  return names;
}

bool is_of_a_gpu(const std::string& name) {
  for (const char* word : {"cuda", "CUDA", "nccl", "NCCL"}) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("plug-in: LibTorch's CUDA libraries define every symbol of CUDA and NCCL that it uses") {
  if (kPlugin.empty())
    return pipewright::testing::skip("the CUDA plug-in is not built here (see cmake's output)");
  std::set<std::string> defined;
  const fs::path torch = PIPEWRIGHT_TORCH_LIBRARIES;
  for (const fs::path& library :
       {torch / "libtorch_cuda.so", torch / "libc10_cuda.so", fs::path(PIPEWRIGHT_CUDART)})
    defined.merge(symbols(library, "--defined-only"));
  size_t found = 0;
  size_t of_nccl = 0;
  for (const std::string& name : symbols(kPlugin, "--undefined-only")) {
    if (!is_of_a_gpu(name)) continue;
    ++found;
    if (name.find("NCCL") != std::string::npos) ++of_nccl;
    CAPTURE(name);
    CHECK(defined.count(name) == 1);
  }
  CHECK(found > of_nccl);
  CHECK(of_nccl > 0);
}

TEST_CASE("plug-in: its one function is all of Pipewright that others see of it") {
  if (kPlugin.empty())
    return pipewright::testing::skip("the CUDA plug-in is not built here (see cmake's output)");
  const auto shown = symbols(kPlugin, "--defined-only");
  CHECK(shown.count("pipewright_cuda_plugin") == 1);
  for (const std::string& name : shown) {
    CAPTURE(name);
    CHECK((name == "pipewright_cuda_plugin" || name.find("10pipewright") == std::string::npos));
  }
}

TEST_CASE("plug-in: it opens, or the loader names the one library that is missing") {
  if (kPlugin.empty())
    return pipewright::testing::skip("the CUDA plug-in is not built here (see cmake's output)");
  void* const library = dlopen(kPlugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) {
    CHECK(dlsym(library, "pipewright_cuda_plugin") != nullptr);
    return;  // not closed: LibTorch's libraries do not come off again
  }
  const std::string why = dlerror();
  CAPTURE(why);
  CHECK(why.find(".so") != std::string::npos);
  CHECK(why.find("cannot open shared object file") != std::string::npos);  // not: undefined symbol
}
