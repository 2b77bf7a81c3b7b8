// Transports without tags (NCCL) match messages by their order alone. Random pipelines are trained here over
// a world that does the same on the host: it knows the links of the plan, matches the sends and receives of
// each in the order in which they are posted, and lets neither side go on before the other has come.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <deque>

#include "runtime/plan_links.h"
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

struct OrderedWorld {
  DeviceLinks plan;
  std::vector<OrderedLink> links;
  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;
  int64_t messages = 0;

  // Under the mutex.
  void match(OrderedLink& link) {
    while (!link.sends.empty() && !link.receives.empty()) {
      Posted& send = *link.sends.front();
      Posted& receive = *link.receives.front();
      if (send.tag != receive.tag || send.tensor.nbytes() != receive.tensor.nbytes()) {
        failure = "a send with tag " + std::to_string(send.tag) + " meets a receive with tag " +
                  std::to_string(receive.tag);
        break;
      }
      receive.tensor.copy_(send.tensor);
      send.done = receive.done = true;
      ++messages;
      link.sends.pop_front();
      link.receives.pop_front();
    }
    changed.notify_all();
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

bool is_for_devices(int64_t tag, int64_t stages) {
  const auto stream = static_cast<Stream>(tag / StreamTags::kMostParts / stages);
  return stream == Stream::kActivation || stream == Stream::kGradient || stream == Stream::kEvaluation ||
         stream == Stream::kTied;
}

bool holds(const std::vector<TagRange>& ranges, int64_t tag) {
  return std::any_of(ranges.begin(), ranges.end(), [tag](const TagRange& range) { return range.holds(tag); });
}

class OrderedTransport : public Transport {
 public:
  OrderedTransport(std::shared_ptr<OrderedWorld> world, std::unique_ptr<Transport> host, int64_t stages)
      : world_(std::move(world)), host_(std::move(host)), stages_(stages) {}
  int64_t rank() const override { return host_->rank(); }
  int64_t world_size() const override { return host_->world_size(); }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    if (!is_for_devices(tag, stages_)) return host_->send(std::move(tensor), peer, tag);
    return post(&OrderedLink::sends, rank(), peer, std::move(tensor), tag);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    if (!is_for_devices(tag, stages_)) return host_->receive(std::move(tensor), peer, tag);
    return post(&OrderedLink::receives, peer, rank(), std::move(tensor), tag);
  }
  bool sum(const at::Tensor&, const std::vector<int64_t>& ranks, int64_t tag) override {
    if (tag == StreamTags(stages_).of(Stream::kSquareSum, 0)) return false;  // of the host
    const auto& sums = world_->plan.sums;
    if (std::none_of(sums.begin(), sums.end(),
                     [&](const DeviceSum& sum) { return sum.ranks == ranks && holds(sum.tags, tag); }))
      throw std::runtime_error("no sum has tag " + std::to_string(tag));
    return false;
  }
  void abort(const std::string& why) override {
    {
      const std::lock_guard lock(world_->mutex);
      if (world_->failure.empty()) world_->failure = why;
    }
    world_->changed.notify_all();
    host_->abort(why);
  }

 private:
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
    OrderedLink& link = world_->links[found[0]];
    (link.*side).push_back(posted);
    world_->match(link);
    return std::make_unique<OrderedRequest>(world_, std::move(posted));
  }

  std::shared_ptr<OrderedWorld> world_;
  std::unique_ptr<Transport> host_;
  int64_t stages_;
};

std::pair<std::shared_ptr<OrderedWorld>, std::vector<std::unique_ptr<Transport>>> ordered_world(
    const Plan& plan) {
  const auto stages = static_cast<int64_t>(plan.stages.size());
  auto world = std::make_shared<OrderedWorld>();
  world->plan = links_of(plan, StreamTags(stages));
  world->links.resize(world->plan.links.size());
  std::vector<std::unique_ptr<Transport>> ranks;
  for (auto& host : make_local_world(plan.world_size))
    ranks.push_back(std::make_unique<OrderedTransport>(world, std::move(host), stages));
  return {world, std::move(ranks)};
}

}  // namespace

TEST_CASE(
    "links: random pipelines give the serial bits over links that match messages by their order alone") {
  at::set_num_threads(1);
  int64_t messages = 0;
  int64_t tied = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const RandomJob job = RandomJobs(seed).next(8);
    auto [world, ranks] = ordered_world(job.plan);
    compare(job.model, job.plan, job.rules, job.spans, std::move(ranks));
    CHECK(world->failure == "");
    messages += world->messages;
    tied += job.plan.tied_parameters.empty() ? 0 : 1;
  }
  CHECK(messages > 5'000);
  CHECK(tied > 5);
}

TEST_CASE(
    "links: only ranks that share minibatches have one, in both directions, and each pair of them once a "
    "kind") {
  Plan plan;
  plan.world_size = 8;
  plan.stages.resize(2);
  plan.stages[0].ranks = {0, 1, 2, 3};
  plan.stages[1].ranks = {4, 5, 6, 7};
  CHECK(links_of(plan, StreamTags(2)).links.size() == 2 * 4);
  CHECK(links_of(plan, StreamTags(2)).sums.size() == 2);
  plan.stages[1].ranks = {4, 5, 6};
  plan.world_size = 7;
  CHECK(links_of(plan, StreamTags(2)).links.size() == 2 * 12);
  plan.stages[1].ranks = {4, 5};
  plan.world_size = 6;
  CHECK(links_of(plan, StreamTags(2)).links.size() == 2 * 4);
}
