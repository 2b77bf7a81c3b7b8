// What a group does to weights (SDPipe's invariant 10), and how far apart replicas are found to be at a
// drain.
#include "runtime/sync/weight_average.h"

#include <ATen/CPUGeneratorImpl.h>

#include "models/zoo/registry.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/sync/replica_syncs.h"
#include "tests/runtime/pipelines.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

constexpr int64_t kPipelines = 4;

// Each of four replicas has weights of its own, and then `with` is called for it on its thread. Their weights
// afterwards.
std::vector<std::vector<at::Tensor>> with_replicas(
    const std::function<void(Transport&, StageReplica&, const ReplicaSyncSettings&)>& with,
    std::vector<std::vector<at::Tensor>>& before, bool equal = false) {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const Plan plan = plan_of(model, {kPipelines}, {1});
  before.assign(kPipelines, {});
  std::vector<std::vector<at::Tensor>> after(kPipelines);
  spawn(make_world("local", kPipelines), [&](int64_t rank, Transport& transport) {
    const at::NoGradGuard no_grad;
    const auto p = static_cast<size_t>(rank);
    StageReplica stage(model, pipeline_of(plan, {rank, kPipelines}), 0, rank, TrainingRules{}, nullptr, true);
    StageState state = stage.state();
    auto generator = at::make_generator<at::CPUGeneratorImpl>(equal ? 5 : 5 + rank);
    for (at::Tensor& weight : state.weights) weight = at::randn(weight.sizes(), generator);
    stage.replace(std::move(state));
    for (const at::Tensor& weight : stage.weights()) before[p].push_back(weight.detach().clone());
    ReplicaSyncSettings settings;
    settings.ranks = plan.stages[0].ranks;
    with(transport, stage, settings);
    for (const at::Tensor& weight : stage.weights()) after[p].push_back(weight.detach().clone());
  });
  return after;
}

}  // namespace

TEST_CASE(
    "a group's weights are the members' mean, equal to the bit, others keep theirs, and so does the mean of "
    "all") {
  for (const std::vector<int64_t>& group : {std::vector<int64_t>{0, 2, 3}, {1, 3}, {0, 1, 2, 3}, {2}}) {
    std::vector<std::vector<at::Tensor>> before;
    const auto after = with_replicas(
        [&](Transport& transport, StageReplica& stage, const ReplicaSyncSettings& settings) {
          if (std::find(group.begin(), group.end(), stage.replica()) != group.end())
            average_weights(transport, stage, settings, group);
        },
        before);
    for (size_t i = 0; i < before[0].size(); ++i) {
      at::Tensor sum = before[static_cast<size_t>(group[0])][i].clone();
      for (size_t k = 1; k < group.size(); ++k) sum.add_(before[static_cast<size_t>(group[k])][i]);
      const at::Tensor mean = sum / static_cast<double>(group.size());
      at::Tensor all_before = at::zeros_like(mean, at::kDouble), all_after = all_before.clone();
      for (int64_t p = 0; p < kPipelines; ++p) {
        const bool member = std::find(group.begin(), group.end(), p) != group.end();
        const auto& own = after[static_cast<size_t>(p)][i];
        CHECK(at::equal(own, member ? mean : before[static_cast<size_t>(p)][i]));
        all_before += before[static_cast<size_t>(p)][i];
        all_after += own;
      }
      CHECK(at::allclose(all_after, all_before, 1e-6, 1e-6));
    }
  }
}

TEST_CASE("the spread at a drain is how far a replica was from the mean, and nothing where all were equal") {
  for (const bool equal : {false, true}) {
    std::vector<std::vector<at::Tensor>> before;
    std::vector<double> spreads(kPipelines, -1);
    const auto after = with_replicas(
        [&](Transport& transport, StageReplica& stage, ReplicaSyncSettings settings) {
          settings.drained = [&](double spread) { spreads[static_cast<size_t>(stage.replica())] = spread; };
          make_drain_sync(transport, stage, settings)->at_drain();
        },
        before, equal);
    for (size_t p = 0; p < kPipelines; ++p) {
      double distance = 0, norm = 0;
      for (size_t i = 0; i < before[p].size(); ++i) {
        CHECK(at::equal(after[p][i], after[0][i]));
        distance += (before[p][i] - after[p][i]).to(at::kDouble).square().sum().item<double>();
        norm += after[p][i].to(at::kDouble).square().sum().item<double>();
      }
      CHECK(spreads[p] == Approx(std::sqrt(distance / norm)).margin(1e-9));
      CHECK((spreads[p] < 1e-6) == equal);  // three times a number need not be one
    }
  }
}
