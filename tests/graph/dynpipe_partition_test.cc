// DynPipe's partition file, read strictly, and as a plan.
#include "graph/dynpipe_partition.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

const char* const kPartition = R"({
  "partition": [2, 1, 3],
  "recompute_ratio": [0, 1, 0],
  "batch_size_all": [72],
  "batch_size": [18, 24, 72]
})";

Profile six_nodes() {
  Profile profile;
  profile.model = "six";
  for (int v = 0; v < 6; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    node.layer = "layer" + std::to_string(v);
    if (v > 0) node.inputs = {"n" + std::to_string(v - 1) + ".out"};
    node.outputs = {{node.name + ".out", 4}};
    profile.nodes.push_back(node);
  }
  return profile;
}

std::string refusal(std::string from, const std::string& to) {
  std::string text = kPartition;
  text.replace(text.find(from), from.size(), to);
  return error_of<InputError>([&] { parse_dynpipe_partition(text, "partition.json"); });
}

}  // namespace

TEST_CASE("a partition of DynPipe is read, written, and read again") {
  CHECK(looks_like_dynpipe_partition(kPartition));
  const DynPipePartition read = parse_dynpipe_partition(kPartition, "partition.json");
  CHECK(read.layers == std::vector<int64_t>{2, 1, 3});
  CHECK(read.recompute_ratios == std::vector<double>{0, 1, 0});
  CHECK(read.minibatch_samples == 72);
  CHECK(read.replicas == std::vector<int64_t>{4, 3, 1});
  const std::string text = dynpipe_partition_text(read);
  CHECK(dynpipe_partition_text(parse_dynpipe_partition(text, "again.json")) == text);
}

TEST_CASE("a partition of DynPipe that is wrong is refused at its place") {
  CHECK(refusal("\"partition\"", "partition").find("partition.json:2:3") == 0);  // no quotes: no JSON
  CHECK(refusal("[18, 24, 72]", "[18, 25, 72]").find("batch_size: stage 1 has 25 samples") !=
        std::string::npos);
  CHECK(refusal("[18, 24, 72]", "[18, 24]").find("batch_size: has 2 numbers; partition has 3 stages") !=
        std::string::npos);
  CHECK(refusal("[0, 1, 0]", "[0, 1]").find("recompute_ratio: has 2 numbers") != std::string::npos);
  CHECK(refusal("[0, 1, 0]", "[0, 2, 0]").find("recompute_ratio: got 2, expected a number in 0..1") !=
        std::string::npos);
  CHECK(refusal("[2, 1, 3]", "[]").find("partition: has 0 stages") != std::string::npos);
  CHECK(refusal("[2, 1, 3]", "[2, 0, 3]").find("partition[1]: 0 is not in 1..") != std::string::npos);
  CHECK(refusal("[72]", "[72, 72]").find("batch_size_all: has 2 numbers, expected one") != std::string::npos);
  CHECK(refusal("batch_size_all", "batch_size_al").find("did you mean") != std::string::npos);
}

TEST_CASE("a partition is a plan of the profile's nodes in order, and back") {
  const Profile profile = six_nodes();
  const DynPipePartition partition = parse_dynpipe_partition(kPartition, "partition.json");
  const Plan plan = plan_of_partition(partition, profile, "partition.json");
  REQUIRE(plan.stages.size() == 3);
  CHECK(plan.world_size == 8);
  CHECK(plan.stages[0].nodes == std::vector<std::string>{"n0", "n1"});
  CHECK(plan.stages[1].ranks == std::vector<int64_t>{4, 5, 6});
  CHECK(plan.stages[1].recompute);
  CHECK(dynpipe_partition_text(partition_of(plan, profile, 72)) == dynpipe_partition_text(partition));

  const auto refused = [&](const Plan& other, int64_t samples) {
    return error_of<PlanError>([&] { partition_of(other, profile, samples); });
  };
  CHECK(refused(plan, 70).find("70 samples in 4 parts (stage 0)") != std::string::npos);
  Plan mixed = plan;
  std::swap(mixed.stages[0].nodes[0], mixed.stages[1].nodes[0]);
  CHECK(refused(mixed, 72).find("stage 0: its nodes are not the next 2 of the profile") != std::string::npos);
  Plan shared = plan;
  shared.stages[1].shares = {2, 1, 1};
  CHECK(refused(shared, 72).find("shares (stage 1)") != std::string::npos);

  DynPipePartition other = partition;
  other.layers[0] = 3;
  const auto wrong = [&] {
    return error_of<InputError>([&] { plan_of_partition(other, profile, "partition.json"); });
  };
  CHECK(wrong() == "partition.json: partition has 7 layers, the profile of 'six' 6 nodes");
  other = partition;
  other.recompute_ratios[0] = 0.5;
  const Plan partly = plan_of_partition(other, profile, "partition.json");
  CHECK(partly.stages[0].recompute);
  CHECK(partly.stages[0].recompute_ratio == 0.5);
  CHECK(partition_of(partly, profile, 72).recompute_ratios == other.recompute_ratios);
}

}  // namespace pipewright::testing
