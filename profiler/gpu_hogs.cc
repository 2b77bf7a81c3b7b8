#include "profiler/gpu_hogs.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"
#include "interference/hog_work.h"
#include "profiler/marks.h"

namespace pipewright {
namespace {

using Work = std::function<void()>;

Work products(at::Device device) {
  constexpr int64_t kSize = 2048;
  const auto options = at::TensorOptions().device(device);
  const at::Tensor a = at::rand({kSize, kSize}, options), b = at::rand({kSize, kSize}, options);
  return [a, b, product = at::empty_like(a)]() mutable {
    for (int i = 0; i < 4; ++i) at::mm_out(product, a, b);
  };
}

Work copies(at::Device device) {
  constexpr int64_t kBytes = 256 << 20;
  const at::Tensor here = at::zeros({kBytes / 4}, at::TensorOptions().device(device));
  return [here, there = at::empty_like(here)] {
    for (int i = 0; i < 4; ++i) {
      there.copy_(here);
      here.copy_(there);
    }
  };
}

struct GpuHogKind {
  const char* name;
  Work (*make)(at::Device device);
};
constexpr std::array<GpuHogKind, 2> kGpuHogs = {{{"matrix", products}, {"copy", copies}}};

const GpuHogKind* find_gpu_hog(const std::string& kind) {
  const auto found =
      std::find_if(kGpuHogs.begin(), kGpuHogs.end(), [&](const GpuHogKind& row) { return kind == row.name; });
  return found == kGpuHogs.end() ? nullptr : &*found;
}

class Rounds {
 public:
  Rounds(Work work, at::Device device) : work_(std::move(work)), ends_{Marks(device), Marks(device)} {}
  void next() {
    Marks& end = ends_[round_ % ends_.size()];
    if (round_ >= ends_.size()) end.wait();
    end.clear();
    work_();
    end.set();
    ++round_;
  }

 private:
  const Work work_;
  std::array<Marks, 2> ends_;
  size_t round_ = 0;
};

}  // namespace

std::vector<std::string> gpu_hog_kinds() {
  std::vector<std::string> names;
  for (const GpuHogKind& row : kGpuHogs) names.emplace_back(row.name);
  return names;
}

void check_gpu_hog(const std::string& kind, const std::string& where) {
  const std::string summary = hog_kind(kind, where).summary;
  if (!find_gpu_hog(kind))
    throw InputError(where + ": " + in_quotes(kind) + " takes no GPU: it is " + summary,
                     "Kinds of hogs for a GPU: " + join(gpu_hog_kinds(), ", "));
}

std::function<void()> gpu_hog_round(const std::string& kind, at::Device device) {
  check_gpu_hog(kind, "hogs");
  const auto rounds = std::make_shared<Rounds>(find_gpu_hog(kind)->make(device), device);
  return [rounds] { rounds->next(); };
}

}  // namespace pipewright
