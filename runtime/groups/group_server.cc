#include "runtime/groups/group_server.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "graph/error.h"
#include "graph/limits.h"
#include "runtime/groups/group_messages.h"
#include "runtime/side_by_side/connection_window.h"
#include "runtime/side_by_side/minibatch_queue.h"
#include "runtime/transport/listen.h"

namespace pipewright {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// A line of a rank is far shorter: strangers may send anything.
constexpr size_t kLongestLine = 1 << 16;

GroupScheduler::Time now() { return Clock::now().time_since_epoch(); }

// A rank. What is read and written is done in its callbacks, all on one thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Take = std::function<void(const std::shared_ptr<Connection>&, const GroupRequest&)>;
  using Ended = std::function<void(const std::shared_ptr<Connection>&)>;

  Connection(tcp::socket socket, Take take, Ended ended)
      : socket_(std::move(socket)), take_(std::move(take)), ended_(std::move(ended)) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void read() {
    asio::async_read_until(socket_, asio::dynamic_buffer(received_, kLongestLine), '\n',
                           [self = shared_from_this()](error_code error, size_t bytes) {
                             if (error) return self->end();
                             const std::string line = self->received_.substr(0, bytes);
                             self->received_.erase(0, bytes);
                             try {
                               self->take_(self, group_request_of(line));
                             } catch (const std::exception& wrong) {
                               // Else a stranger's.
                               if (self->generation)
                                 std::fprintf(stderr, "scheduler of groups: a rank: %s\n", wrong.what());
                               return self->end();
                             }
                             if (self->socket_.is_open()) self->read();
                           });
  }

  void write(const GroupReply& reply) {
    to_write_ += text_of(reply) + "\n";
    if (writing_.empty()) write_rest();
  }

  void end() {
    error_code ignored;
    socket_.close(ignored);
    if (const Ended ended = std::exchange(ended_, {})) ended(shared_from_this());
  }

  std::optional<int64_t> generation;  // has said hello

 private:
  void write_rest() {
    writing_ = std::exchange(to_write_, {});
    if (writing_.empty()) return;
    asio::async_write(socket_, asio::buffer(writing_), [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->end();
      self->write_rest();
    });
  }

  tcp::socket socket_;
  Take take_;
  Ended ended_;
  std::string received_, to_write_, writing_;
};

}  // namespace

class GroupServer::Loop {
 public:
  explicit Loop(Settings settings) : settings_(std::move(settings)) {
    const Listening bound = bind_socket(settings_.host, 0);
    port_ = bound.port;
    // The family of an address that is bound does not matter to who accepts.
    acceptor_.assign(tcp::v4(), bound.descriptor);
    acceptor_.listen();
    accept();
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Loop() {
    context_.stop();
    thread_.join();
  }

  int64_t port() const { return port_; }
  int64_t stop_handing_out(int64_t generation, int64_t last_started,
                           const std::function<int64_t(int64_t)>& stop_after) {
    const std::lock_guard lock(mutex_);
    Work& work = work_[generation];
    int64_t last = last_started;
    for (const auto& [first, queue] : work.queues) last = std::max(last, queue.next() - 1);
    work.end = stop_after(last);
    for (auto& [first, queue] : work.queues) queue.end_before(std::max(work.end, queue.next()));
    return work.end;
  }
  GroupStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    GroupStatistics sum = of_ended_;
    for (const auto& [number, generation] : generations_) add(generation.scheduler.statistics(), sum);
    for (const auto& [stage, window] : windows_)
      sum.longest_window_updates = std::max(sum.longest_window_updates, window.second.longest_updates());
    return sum;
  }

 private:
  struct Generation {
    explicit Generation(GroupRules rules) : scheduler(rules) {}
    GroupScheduler scheduler;
    std::set<std::shared_ptr<Connection>> ranks;
    std::map<std::pair<int64_t, int64_t>, std::shared_ptr<Connection>> asks;  // by stage and pipeline
    std::map<int64_t, std::vector<std::shared_ptr<Connection>>> leaving;      // by stage
  };

  /// Of a generation.
  struct Work {
    std::map<int64_t, MinibatchQueue> queues;  // by the span's first minibatch
    int64_t end = std::numeric_limits<int64_t>::max();
  };

  static void add(const GroupStatistics& part, GroupStatistics& sum) {
    for (const auto& [size, count] : part.groups) sum.groups[size] += count;
    sum.columns += part.columns;
    sum.longest_window_updates = std::max(sum.longest_window_updates, part.longest_window_updates);
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!error) {
        std::make_shared<Connection>(
            std::move(socket), [this](const auto& rank, const auto& request) { take(rank, request); },
            [this](const auto& rank) { ended(rank); })
            ->read();
      }
      if (acceptor_.is_open()) accept();
    });
  }

  void take(const std::shared_ptr<Connection>& rank, const GroupRequest& request) {
    const std::lock_guard lock(mutex_);
    if (!rank->generation && !std::holds_alternative<GroupHello>(request))
      throw InputError("it has not said which job it is of");
    std::visit([&](const auto& said) { hear(rank, said); }, request);
  }

  void hear(const std::shared_ptr<Connection>& rank, const GroupHello& hello) {
    if (rank->generation || hello.secret != settings_.secret) throw InputError("it is not of this job");
    if (hello.stages < 1 || hello.stages > kMostRanks || hello.pipelines < 1 || hello.pipelines > kMostRanks)
      throw InputError("stages or pipelines out of range");
    GroupRules rules;
    rules.stages = hello.stages;
    rules.pipelines = hello.pipelines;
    rules.window_updates = settings_.rules.window_updates;
    rules.pairs_above = settings_.rules.pairs_above;
    rules.of_whole_pipelines = settings_.rules.of_whole_pipelines;
    rank->generation = hello.generation;
    generations_.try_emplace(hello.generation, rules).first->second.ranks.insert(rank);
  }

  void hear(const std::shared_ptr<Connection>& rank, const UpdateExpected& update) {
    generation_of(rank).scheduler.announce(update.stage, update.pipeline, now(), update.ready_in);
  }

  void hear(const std::shared_ptr<Connection>& rank, const UpdateMade& update) {
    Generation& generation = generation_of(rank);
    generation.asks[{update.stage, update.pipeline}] = rank;
    tell(*rank->generation, generation,
         generation.scheduler.arrive(update.stage, update.pipeline, now(), update.patience));
    set_timer();
  }

  void hear(const std::shared_ptr<Connection>& rank, const StageLeft& left) {
    Generation& generation = generation_of(rank);
    tell(*rank->generation, generation, generation.scheduler.leave(left.stage, left.pipeline, now()));
    auto& leaving = generation.leaving[left.stage];
    leaving.push_back(rank);
    if (static_cast<int64_t>(leaving.size()) == generation.scheduler.rules().pipelines) {
      if (settings_.left) settings_.left(*rank->generation, left.stage);
      for (const auto& each : std::exchange(leaving, {})) each->write(StageLeftByAll{left.stage});
    }
    set_timer();
  }

  // Of what nobody decided here.
  void hear(const std::shared_ptr<Connection>& rank, const PipelinesMet& met) {
    const GroupRules& rules = generation_of(rank).scheduler.rules();
    const WeightMeeting& meeting = met.meeting;
    if (met.stage < 0 || met.stage >= rules.stages ||
        std::max(meeting.active, meeting.passive) >= rules.pipelines)
      throw InputError("a meeting at a stage or of a pipeline that there is not");
    auto& [span, window] =
        windows_.try_emplace({*rank->generation, met.stage}, met.span, ConnectionWindow(rules.pipelines))
            .first->second;
    if (std::exchange(span, met.span) != met.span) window.begin_span();
    window.reached(meeting.active, meeting.published);
    window.reached(meeting.passive, meeting.met);
    window.connect(meeting.active, meeting.passive);
    ++of_ended_.groups[2];
    if (settings_.met) settings_.met(*rank->generation, met.stage, met.span, meeting);
  }

  void hear(const std::shared_ptr<Connection>& rank, const MinibatchesWanted& wanted) {
    MinibatchQueue& queue = queue_of(work_[*rank->generation], wanted);
    const MinibatchQueue::Part part = queue.part(wanted.pipeline, wanted.part);
    if (part.fresh && part.minibatches.count > 0 && settings_.handed_out)
      settings_.handed_out(*rank->generation, wanted.span, wanted.pipeline, part.minibatches);
    rank->write(MinibatchesGiven{part.minibatches});
  }

  Generation& generation_of(const std::shared_ptr<Connection>& rank) {
    return generations_.at(*rank->generation);
  }

  static MinibatchQueue& queue_of(Work& work, const MinibatchesWanted& wanted) {
    const Span& span = wanted.span;
    auto found = work.queues.find(span.first);
    if (found == work.queues.end()) {
      if (wanted.interval < 1) throw InputError("an interval of " + std::to_string(wanted.interval));
      // Stages of a pipeline are at most one span apart.
      if (work.queues.size() > 1) {
        if (span.first < work.queues.begin()->first)
          throw InputError("the span that begins with minibatch " + std::to_string(span.first) + " is over");
        work.queues.erase(work.queues.begin());
      }
      found = work.queues.emplace(span.first, MinibatchQueue(span, wanted.interval)).first;
      found->second.end_before(std::max(work.end, span.first));
    }
    MinibatchQueue& queue = found->second;
    if (queue.span() != span || queue.interval() != wanted.interval)
      throw InputError("another span begins with minibatch " + std::to_string(span.first));
    return queue;
  }

  void tell(int64_t number, Generation& generation, const std::vector<GroupDecision>& decisions) {
    for (const GroupDecision& decision : decisions) {
      if (settings_.decided) settings_.decided(number, decision);
      for (const int64_t pipeline : decision.heard_by) {
        const auto asked = generation.asks.find({decision.stage, pipeline});
        if (asked == generation.asks.end()) continue;  // that rank has gone, which ends the job
        asked->second->write(GroupFormed{decision.stage, decision.pipelines});
        generation.asks.erase(asked);
      }
    }
  }

  void ended(const std::shared_ptr<Connection>& rank) {
    const std::lock_guard lock(mutex_);
    if (!rank->generation) return;
    const auto found = generations_.find(*rank->generation);
    if (found == generations_.end() || found->second.ranks.erase(rank) == 0) return;
    for (auto ask = found->second.asks.begin(); ask != found->second.asks.end();)
      ask = ask->second == rank ? found->second.asks.erase(ask) : std::next(ask);
    if (!found->second.ranks.empty()) return;
    add(found->second.scheduler.statistics(), of_ended_);
    generations_.erase(found);
  }

  // For the first of the groups that wait for a time.
  void set_timer() {
    std::optional<GroupScheduler::Time> first;
    for (const auto& [number, generation] : generations_) {
      const auto deadline = generation.scheduler.deadline();
      if (deadline && (!first || *deadline < *first)) first = deadline;
    }
    if (!first) return;
    timer_.expires_at(Clock::time_point(*first));
    timer_.async_wait([this](error_code error) {
      if (error) return;
      const std::lock_guard lock(mutex_);
      for (auto& [number, generation] : generations_)
        tell(number, generation, generation.scheduler.expire(now()));
      set_timer();
    });
  }

  const Settings settings_;
  asio::io_context context_;
  tcp::acceptor acceptor_{context_};
  asio::steady_timer timer_{context_};
  int64_t port_ = 0;
  mutable std::mutex mutex_;  // of what follows: statistics() comes from any thread
  std::map<int64_t, Generation> generations_;
  std::map<int64_t, Work> work_;  // by generation
  // Of meetings, by generation and stage: of which span, and how they connect pipelines.
  std::map<std::pair<int64_t, int64_t>, std::pair<int64_t, ConnectionWindow>> windows_;
  GroupStatistics of_ended_;  // generations, and of all meetings
  std::thread thread_;
};

GroupServer::GroupServer(Settings settings) : loop_(std::make_unique<Loop>(std::move(settings))) {}
GroupServer::~GroupServer() = default;
int64_t GroupServer::stop_handing_out(int64_t generation, int64_t last_started,
                                      const std::function<int64_t(int64_t)>& stop_after) {
  return loop_->stop_handing_out(generation, last_started, stop_after);
}
int64_t GroupServer::port() const { return loop_->port(); }
GroupStatistics GroupServer::statistics() const { return loop_->statistics(); }

}  // namespace pipewright
