// Transports without tags (NCCL) match messages by their order alone. Random pipelines are trained here over
// a world that does the same on the host: it knows the links of the plan, matches the sends and receives of
// each in the order in which they are posted, and lets neither side go on before the other has come.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <deque>
#include <map>
#include <numeric>
#include <random>

#include "runtime/worker/plan_links.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

struct Posted {
  at::Tensor tensor;
  int64_t tag = 0;
  bool done = false;
};

struct OrderedLink {
  std::deque<std::shared_ptr<Posted>> sends;
  std::deque<std::shared_ptr<Posted>> receives;
};

struct OrderedSum {
  std::vector<size_t> begun;  // sums, by place in the ranks
  struct Call {
    int64_t tag = 0;
    std::vector<at::Tensor> addends;  // by place in the ranks
    int64_t missing = 0;
    at::Tensor sum;
  };
  std::deque<Call> calls;
};

struct OrderedWorld {
  DeviceLinks plan;
  std::vector<OrderedLink> links;
  std::vector<OrderedSum> sums;
  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;
  std::map<Stream, int64_t> messages;  // by what they carry; a rank's part in a sum is one

  // Under the mutex.
  void match(OrderedLink& link) {
    while (!link.sends.empty() && !link.receives.empty()) {
      Posted& send = *link.sends.front();
      Posted& receive = *link.receives.front();
      if (send.tag != receive.tag || send.tensor.nbytes() != receive.tensor.nbytes()) {
        fail("a send with tag " + std::to_string(send.tag) + " meets a receive with tag " +
             std::to_string(receive.tag));
        break;
      }
      receive.tensor.copy_(send.tensor);
      send.done = receive.done = true;
      link.sends.pop_front();
      link.receives.pop_front();
    }
    changed.notify_all();
  }
  void fail(const std::string& why) {
    if (failure.empty()) failure = why;
  }
};

class OrderedRequest : public Request {
 public:
  OrderedRequest(std::shared_ptr<OrderedWorld> world, std::shared_ptr<Posted> posted)
      : world_(std::move(world)), posted_(std::move(posted)) {}
  void wait() override {
    std::unique_lock lock(world_->mutex);
    world_->changed.wait(lock, [&] { return posted_->done || !world_->failure.empty(); });
    if (!posted_->done) throw PeerError(world_->failure);
  }

 private:
  std::shared_ptr<OrderedWorld> world_;
  std::shared_ptr<Posted> posted_;
};

bool holds(const std::vector<TagRange>& ranges, int64_t tag) {
  return std::any_of(ranges.begin(), ranges.end(), [tag](const TagRange& range) { return range.holds(tag); });
}

// Whatever a worker sends, with whatever tag, must have its link: no table here says what is for devices.
class OrderedTransport : public Transport {
 public:
  OrderedTransport(std::shared_ptr<OrderedWorld> world, int64_t rank, int64_t size, int64_t stages)
      : world_(std::move(world)), rank_(rank), size_(size), stages_(stages) {}
  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return size_; }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return post(&OrderedLink::sends, rank_, peer, std::move(tensor), tag);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return post(&OrderedLink::receives, peer, rank_, std::move(tensor), tag);
  }
  // As NCCL's: the sums of a group are matched by their order alone, and nobody leaves one before all have
  // come.
  bool sum(const at::Tensor& flat, const std::vector<int64_t>& ranks, int64_t tag) override {
    std::unique_lock lock(world_->mutex);
    size_t found = world_->sums.size();
    for (size_t i = 0; i < world_->sums.size(); ++i) {
      const DeviceSum& sum = world_->plan.sums[i];
      if (sum.ranks != ranks || !holds(sum.tags, tag)) continue;
      if (found != world_->sums.size()) throw std::runtime_error("two sums have tag " + std::to_string(tag));
      found = i;
    }
    if (found == world_->sums.size()) return false;  // then its messages need links
    OrderedSum& sum = world_->sums[found];
    const auto place = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
    if (sum.begun.empty()) sum.begun.resize(ranks.size(), 0);
    const size_t number = sum.begun[place]++;
    if (number == sum.calls.size())
      sum.calls.push_back(
          {tag, std::vector<at::Tensor>(ranks.size()), static_cast<int64_t>(ranks.size()), {}});
    OrderedSum::Call& call = sum.calls[number];
    if (call.tag != tag)
      world_->fail("sums with tags " + std::to_string(tag) + " and " + std::to_string(call.tag));
    call.addends[place] = flat.clone();
    ++world_->messages[stream_of(tag)];
    if (--call.missing == 0 && world_->failure.empty()) {
      for (const at::Tensor& addend : call.addends)
        call.sum = call.sum.defined() ? call.sum + addend : addend;
    }
    world_->changed.notify_all();
    world_->changed.wait(lock, [&] { return call.sum.defined() || !world_->failure.empty(); });
    if (!call.sum.defined()) throw PeerError(world_->failure);
    flat.copy_(call.sum);
    return true;
  }
  void abort(const std::string& why) override {
    {
      const std::lock_guard lock(world_->mutex);
      world_->fail(why);
    }
    world_->changed.notify_all();
  }

 private:
  Stream stream_of(int64_t tag) const { return static_cast<Stream>(tag / StreamTags::kMostParts / stages_); }

  std::unique_ptr<Request> post(std::deque<std::shared_ptr<Posted>> OrderedLink::*side, int64_t from,
                                int64_t to, at::Tensor tensor, int64_t tag) {
    auto posted = std::make_shared<Posted>(Posted{std::move(tensor), tag});
    const std::lock_guard lock(world_->mutex);
    std::vector<size_t> found;
    for (size_t i = 0; i < world_->plan.links.size(); ++i) {
      const DeviceLink& link = world_->plan.links[i];
      if (link.from == from && link.to == to && holds(link.tags, tag)) found.push_back(i);
    }
    if (found.size() != 1) {
      throw std::runtime_error(std::to_string(found.size()) + " links from rank " + std::to_string(from) +
                               " to " + std::to_string(to) + " have tag " + std::to_string(tag));
    }
    ++world_->messages[stream_of(tag)];
    OrderedLink& link = world_->links[found[0]];
    (link.*side).push_back(posted);
    world_->match(link);
    return std::make_unique<OrderedRequest>(world_, std::move(posted));
  }

  std::shared_ptr<OrderedWorld> world_;
  int64_t rank_;
  int64_t size_;
  int64_t stages_;
};

std::pair<std::shared_ptr<OrderedWorld>, std::vector<std::unique_ptr<Transport>>> ordered_world(
    const Plan& plan, const TrainingRules& rules) {
  const auto stages = static_cast<int64_t>(plan.stages.size());
  auto world = std::make_shared<OrderedWorld>();
  world->plan = links_of(plan, StreamTags(stages), rules.gradient_clipping_norm > 0, sync_facts(rules.sync));
  world->links.resize(world->plan.links.size());
  world->sums.resize(world->plan.sums.size());
  std::vector<std::unique_ptr<Transport>> ranks;
  for (int64_t rank = 0; rank < plan.world_size; ++rank)
    ranks.push_back(std::make_unique<OrderedTransport>(world, rank, plan.world_size, stages));
  return {world, std::move(ranks)};
}

// Ranks in any order, over all stages alike.
void shuffle_ranks(Plan& plan, uint64_t seed) {
  std::vector<int64_t> names(static_cast<size_t>(plan.world_size));
  std::iota(names.begin(), names.end(), 0);
  std::shuffle(names.begin(), names.end(), std::mt19937_64(seed));
  for (Stage& stage : plan.stages)
    for (int64_t& rank : stage.ranks) rank = names[static_cast<size_t>(rank)];
}

// As after an epoch: forwards alone, of all ranks.
void evaluate(const Model& model, const Plan& plan, Worker& worker,
              const std::vector<MinibatchFields>& minibatches) {
  const Graph graph = evaluation_graph(model.graph);
  const auto interfaces = partition(graph, plan);
  std::map<int64_t, StageProgram> programs;
  for (size_t i = 0; i < worker.stage_count(); ++i) {
    const int64_t stage = worker.stage(i).stage();
    programs.emplace(stage, StageProgram(graph, interfaces, static_cast<size_t>(stage)));
  }
  WorkerHooks hooks;
  hooks.fields = [&](int64_t stage, int64_t k) {
    std::vector<at::Tensor> fields;
    for (const std::string& name : programs.at(stage).fields())
      fields.push_back(minibatches[static_cast<size_t>(k)].at(name));
    return fields;
  };
  worker.evaluate(
      {0, static_cast<int64_t>(minibatches.size())},
      [&](int64_t stage, int64_t) -> const StageProgram& { return programs.at(stage); }, hooks);
}

}  // namespace

TEST_CASE(
    "links: whatever random pipelines send has one, and they give the serial bits over links that match "
    "messages by their order alone") {
  at::set_num_threads(1);
  std::map<Stream, int64_t> messages;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    RandomJob job = seed % 4 == 3 ? RandomJobs(seed).next_side_by_side("none", 8) : RandomJobs(seed).next(8);
    shuffle_ranks(job.plan, seed);
    auto [world, ranks] = ordered_world(job.plan, job.rules);
    const auto evaluated = random_minibatches(job.model.graph, 3, 5);
    RankExtras extras;
    extras.finish = [&](Worker& worker) { evaluate(job.model, job.plan, worker, evaluated); };
    compare(job.model, job.plan, job.rules, job.spans, std::move(ranks), 5, {}, extras);
    CHECK(world->failure == "");
    for (const auto& [stream, count] : world->messages) messages[stream] += count;
  }
  // Nothing that a worker sends was left untried.
  CHECK(messages[Stream::kActivation] > 2'000);
  CHECK(messages[Stream::kGradient] > 2'000);
  CHECK(messages[Stream::kEvaluation] > 200);
  CHECK(messages[Stream::kReplicaSum] > 500);
  CHECK(messages[Stream::kBufferSum] > 20);
  CHECK(messages[Stream::kTied] > 50);
  CHECK(messages[Stream::kSquareSum] > 50);
  CHECK(messages.size() == 7);
}

TEST_CASE(
    "links: only ranks that share minibatches have one, in both directions, and each pair of them once a "
    "kind") {
  Plan plan;
  plan.world_size = 8;
  plan.stages.resize(2);
  plan.stages[0].ranks = {0, 1, 2, 3};
  plan.stages[1].ranks = {4, 5, 6, 7};
  CHECK(links_of(plan, StreamTags(2), false).links.size() == 2 * 4);
  CHECK(links_of(plan, StreamTags(2), false).sums.size() == 2);
  plan.stages[1].ranks = {4, 5, 6};
  plan.world_size = 7;
  CHECK(links_of(plan, StreamTags(2), false).links.size() == 2 * 12);
  plan.stages[1].ranks = {4, 5};
  plan.world_size = 6;
  CHECK(links_of(plan, StreamTags(2), false).links.size() == 2 * 4);
}

TEST_CASE(
    "links: all ranks have a sum for the norm where gradients are clipped over the model, and only there") {
  Plan plan;
  plan.world_size = 3;
  plan.stages.resize(3);
  for (int64_t s = 0; s < 3; ++s) plan.stages[static_cast<size_t>(s)].ranks = {2 - s};
  plan.weights = "flush";
  CHECK(links_of(plan, StreamTags(3), false).sums.empty());
  REQUIRE(links_of(plan, StreamTags(3), true).sums.size() == 1);
  CHECK(links_of(plan, StreamTags(3), true).sums[0].ranks == std::vector<int64_t>{0, 1, 2});
  plan.weights = "stash";
  CHECK(links_of(plan, StreamTags(3), true).sums.empty());
  plan.tied_parameters = {{"shared", {0, 2}}};
  CHECK(links_of(plan, StreamTags(3), true).sums.size() == 1);
}
