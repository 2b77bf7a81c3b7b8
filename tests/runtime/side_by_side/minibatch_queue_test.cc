// Handing minibatches out: each of a span to one pipeline, whatever the order in which they ask.
#include "runtime/side_by_side/minibatch_queue.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "graph/error.h"
#include "runtime/schedule/pipeline_span.h"

using namespace pipewright;

namespace {

// As if the server were here.
class QueueHere : public MinibatchSource {
 public:
  explicit QueueHere(MinibatchQueue& queue) : queue_(queue) {}
  Span part(Span span, int64_t interval, int64_t pipeline, int64_t number) override {
    CHECK(span == queue_.span());
    CHECK(interval == queue_.interval());
    return queue_.part(pipeline, number).minibatches;
  }

 private:
  MinibatchQueue& queue_;
};

}  // namespace

TEST_CASE("every minibatch is handed out once, in parts of an update that end where the run's would") {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
    const int64_t interval = 1 + below(5), pipelines = 1 + below(5);
    const Span span{below(20), below(40)};
    MinibatchQueue queue(span, interval);
    const int64_t end = below(3) == 0 ? span.first + below(40) : span.end();
    std::set<int64_t> left;
    std::map<int64_t, std::vector<Span>> got;
    std::set<int64_t> done;
    while (static_cast<int64_t>(done.size()) < pipelines) {
      const int64_t pipeline = below(static_cast<uint64_t>(pipelines));
      if (below(7) == 0 && queue.next() <= end) queue.end_before(end);
      const auto number = static_cast<int64_t>(got[pipeline].size());
      const MinibatchQueue::Part part = queue.part(pipeline, number);
      CHECK(part.fresh);
      const MinibatchQueue::Part again = queue.part(pipeline, number);
      CHECK_FALSE(again.fresh);
      CHECK(again.minibatches == part.minibatches);
      if (part.minibatches.count == 0) done.insert(pipeline);
      got[pipeline].push_back(part.minibatches);
      for (int64_t k = part.minibatches.first; k < part.minibatches.end(); ++k) CHECK(left.insert(k).second);
      if (part.minibatches.count == 0) continue;
      CHECK(part.minibatches.first / interval == (part.minibatches.end() - 1) / interval);
      const bool begins = part.minibatches.first % interval == 0 || part.minibatches.first == span.first;
      CHECK(begins);
    }
    const auto count = static_cast<int64_t>(left.size());
    if (count > 0) CHECK((*left.begin() == span.first && *left.rbegin() == span.first + count - 1));
    CHECK((count == span.count || count >= std::min(span.count, end - span.first)));
    CHECK_THROWS_AS(queue.part(0, 1000), InputError);
  }
}

TEST_CASE("a pipeline's own count has no gaps, goes to the run's and back, and ends with what it got") {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
    const int64_t interval = 1 + below(5);
    const Span span{below(20), below(30)};
    MinibatchQueue queue(span, interval);
    QueueHere source(queue);
    std::vector<std::unique_ptr<SharedSpan>> pipelines;
    for (int64_t p = 0; p < 3; ++p)
      pipelines.push_back(std::make_unique<SharedSpan>(span, interval, p, source));
    std::vector<int64_t> next;
    std::vector<Span> listed;
    for (const auto& pipeline : pipelines) {
      listed.push_back(pipeline->own());
      next.push_back(listed.back().first);
    }
    std::set<int64_t> trained;
    std::vector<bool> ended(3, false);
    while (!(ended[0] && ended[1] && ended[2])) {
      const auto p = static_cast<size_t>(below(3));
      const SharedSpan& own = *pipelines[p];
      const auto k = next[p] < listed[p].end() ? own.to_run(next[p]) : std::nullopt;
      if (!k) {
        ended[p] = true;
        CHECK(own.own() == Span{listed[p].first, next[p] - listed[p].first});
        CHECK(own.before(span.end()) == next[p]);
        // Nothing comes behind the first that does not.
        for (int64_t later = next[p]; later < listed[p].end(); ++later) CHECK_FALSE(own.to_run(later));
        continue;
      }
      CHECK(own.to_own(*k) == next[p]);
      CHECK(own.before(*k) == next[p]);
      CHECK(*k % interval == next[p] % interval);
      CHECK(trained.insert(*k).second);
      ++next[p];
    }
    CHECK(static_cast<int64_t>(trained.size()) == span.count);
  }
}
