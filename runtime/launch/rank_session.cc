#include "runtime/launch/rank_session.h"

#include <algorithm>
#include <new>
#include <utility>

#include "graph/error.h"
#include "models/device/device.h"
#include "runtime/control/flight.h"
#include "runtime/control/lone_watch.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/rendezvous.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/transport/connect.h"
#include "runtime/transport/process_state.h"
#include "runtime/transport/slowed.h"
#include "runtime/worker/plan_links.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

// After a failure rank 0 waits this long for what the others still have to say.
constexpr auto kLastWordsPatience = std::chrono::seconds(2);

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// A failure of another rank, for this rank's last line: the cause, and where it met this rank.
JobEnded seen_from_here(const Failure& failure, const std::string& here) {
  return JobEnded(ExitCode::kPeerLost, here.empty() ? failure.message : failure.message + "; here: " + here,
                  failure);
}

}  // namespace

RankSession::RankSession(const Job& job, const Place& place)
    : job_(job), place_(place), folder_(job.run.output), message_delays_(job.disturbances, place.rank) {}

void RankSession::run(RankTask& task) {
  std::optional<LoneWatch> lone;
  if (place_.world_size == 1) {
    std::function<void(const ProgressNow&)> told;  // Control's thread tells it, where there is one
    if (!place_.store_is_served) told = [this](const ProgressNow& now) { say(now); };
    lone.emplace(
        progress_, milliseconds_of(job_.run.timeout_seconds),
        [this](const std::string& why) { write_flight(why); }, std::move(told));
  }
  guarded(task, [&] {
    connect(task);
    task.prepare();
    has_last_words_ = true;
    control_->watch(progress_, [this](const std::string& why) { write_flight(why); });
    if (place_.world_size > 1 && !place_.store_is_served) control_->store_is_served_by(0);
    begin(task);
    control_->set_timeout(milliseconds_of(job_.run.timeout_seconds));
    task.work();
    post_last_words(task);
    progress_.begin({"end of the job", {}, /*done=*/true});
    control_->barrier("end", start_patience(), Meeting::kEnd);
  });
  control_->finish(start_patience());
  task.close(control_->failure() ? "failed" : "done");
  control_->check();  // a rank may have died between the last barrier and its last words
}

// "rank 2, receive activation of minibatch 17 since 12.0 s", "" between operations.
std::string RankSession::where() {
  const ProgressNow now = progress_.now();
  if (now.activity.operation.empty()) return "";
  return "rank " + std::to_string(place_.rank) + ", " + now.activity.operation + " since " +
         seconds_words(now.seconds);
}

// A defect of ours, and what a library throws, as the error that it is for everybody: one line, and where the
// rest is.
Error RankSession::as_error(const std::exception& own) const {
  if (const auto* known = dynamic_cast<const Error*>(&own)) return *known;
  if (dynamic_cast<const std::bad_alloc*>(&own))
    return RunError("out of memory", "Free memory on this machine, or make the input smaller.");
  const std::string text = own.what();
  return RunError(
      text.substr(0, text.find('\n')),
      "This is a defect of Pipewright. Please report it with the command, its inputs, this line and " +
          flight_file(folder_, place_.rank).string() + ".");
}

// Runs `step`; what ends it early is told to the other ranks, the task is closed as far as it got, and the
// error that counts for the whole job is thrown.
template <typename Step>
void RankSession::guarded(RankTask& task, Step step) {
  std::exception_ptr error;
  std::string status = "failed";
  std::string here;  // what this rank was in
  try {
    try {
      step();
      return;
    } catch (...) {
      here = where();
      throw;
    }
  } catch (const JobEnded& ended) {
    if (ended.code() != ExitCode::kPeerLost) status = "interrupted";
    error = std::current_exception();
    if (ended.code() == ExitCode::kPeerLost) {
      write_flight(ended.what());
      error = std::make_exception_ptr(seen_from_here(ended.failure(), here));
    }
  } catch (const PeerError& lost) {
    write_flight(lost.what());  // to find out why may take a while
    error = std::current_exception();
    if (control_) {
      const Failure failure = control_->peer_lost(here.empty() ? lost.what() : here + ": " + lost.what());
      const bool interrupted = is_interruption(failure.code);
      if (interrupted) status = "interrupted";
      const JobEnded seen =
          interrupted ? JobEnded(failure.code, failure.message, failure) : seen_from_here(failure, here);
      if (!interrupted) write_flight(seen.what());
      error = std::make_exception_ptr(seen);
    }
  } catch (const std::exception& own) {
    write_flight(own.what());
    const Error failed = as_error(own);
    error = dynamic_cast<const Error*>(&own) ? std::current_exception() : std::make_exception_ptr(failed);
    if (control_) {
      control_->fail({place_.rank, failed.code(),
                      "rank " + std::to_string(place_.rank) + ": " + failed.what(), failed.remedy()});
    }
  }
  // Whatever goes wrong from here on must neither hide the cause nor leave out what is still to be done:
  // behind finish() no thread of Control calls the task.
  const auto still = [](auto last_step) {
    try {
      last_step();
    } catch (const std::exception& later) {
      std::fprintf(stderr, "pipewright-runtime: while ending after a failure: %s\n", later.what());
    }
  };
  still([&] { post_last_words(task); });
  if (control_) control_->finish(kLastWordsPatience);
  still([&] { task.close(status); });
  std::rethrow_exception(error);
}

void RankSession::post_last_words(RankTask& task) {
  if (std::exchange(has_last_words_, false)) task.post_last_words();
}

std::chrono::milliseconds RankSession::start_patience() const {
  return milliseconds_of(job_.run.start_timeout_seconds);
}

// What is wrong with this start has been found by now, on whichever rank, and what an earlier run left in the
// folder is as it was.
void RankSession::begin(RankTask& task) {
  control_->barrier("prepared", start_patience(), Meeting::kStart);
  if (place_.rank == 0) {
    task.begin();
    control_->set_sink([&task](int64_t rank, RankMessage message) { task.take(rank, std::move(message)); });
    if (store_) Board(*store_).set_begun();
  }
  task.begin_here();
  folder_is_ours_ = true;
  control_->barrier(kStartMeeting, start_patience(), Meeting::kStart);
}

void RankSession::connect(RankTask& task) {
  // Until all have begun, whoever is slow to answer may only be short of a core.
  const auto patience = std::max(start_patience(), milliseconds_of(job_.run.timeout_seconds));
  std::optional<Store>& store = store_;
  std::optional<Store> for_control;
  // A launcher waits to hear of a rank alone, too.
  if (place_.world_size > 1 || place_.store_is_served) {
    if (place_.rank == 0 && !place_.store_is_served) server_ = serve_store(place_);
    JoinedStore joined = join_store(place_, start_patience());
    store = std::move(joined.store);
    for_control = std::move(joined.for_control);
  }
  const auto wake = [this](const std::string& why) {
    const std::lock_guard lock(transport_mutex_);
    if (transport_) transport_->abort(why);
  };
  control_ =
      std::make_unique<Control>(std::move(for_control), place_.rank, place_.world_size, patience, wake);
  control_->call_at_beats([this](const ProgressNow& now) { say(now); });
  task.open();
  if (place_.world_size == 1) return;

  // Ranks that were started with different plans, runs or libraries must not train together.
  const std::string mine = job_fingerprint(job_);
  exchange_.emplace(*store, Exchange::Settings{place_.rank, place_.world_size, start_patience(),
                                               [this] { control_->check(); }});
  exchange_->say(Topic::kHost, this_process().host);
  if (place_.rank == 0) exchange_->say(Topic::kFingerprint, mine);
  control_->barrier("arrival", start_patience(), Meeting::kStart);
  const std::string first = exchange_->said_by(0, Topic::kFingerprint);
  if (mine != first) {
    throw PlanError("rank " + std::to_string(place_.rank) +
                        " was started with another job than rank 0: " + fingerprint_difference(mine, first),
                    "give every rank the same plan, run and version of Pipewright");
  }
  connect_links(job_.plan_of(job_.resume ? job_.generation_at(job_.resume->manifest.next_minibatch) : 0),
                "links");
  warm_links(*transport_);  // from here on a wait can be woken
}

void RankSession::connect_links(const Plan& plan, const std::string& name) {
  ConnectSettings settings;
  settings.transport = job_.run.transport;
  settings.gloo_address = gloo_address_of(place_);
  settings.timeout = std::max(start_patience(), milliseconds_of(job_.run.timeout_seconds));
  settings.check = [this] { control_->check(); };
  settings.cores = host_cores();
  settings.device = job_.device;
  if (settings.device.is_cuda()) settings.cuda = &cuda_plugin("device");
  settings.links = links_of(plan, StreamTags(static_cast<int64_t>(plan.stages.size())),
                            job_.run.gradient_clipping_norm > 0, sync_facts(job_.run.sync));
  auto transport = connect_ranks(*store_, name, place_.rank, place_.world_size, settings);
  if (job_.disturbances.slows_links()) {
    transport = make_slowed_transport(std::move(transport),
                                      [this](int64_t peer) { return message_delays_.take(peer); });
  }
  const std::lock_guard lock(transport_mutex_);
  transport_.swap(transport);  // the one before lives until all ranks have left it
  if (const auto failure = control_->failure()) transport_->abort(failure->message);
}

void RankSession::connect_for(const Plan& plan, int64_t generation) {
  if (place_.world_size == 1 || !job_.device.is_cuda()) return;
  connect_links(plan, "links/generation-" + std::to_string(generation));
}

namespace {

// Whoever waits for this rank, or finds it silent, hears what it is in; and it hears of failures elsewhere.
class ProgressObserver : public ActionObserver {
 public:
  ProgressObserver(Control& control, Progress& progress, const Plan& plan, PipelineShape shape, int64_t rank)
      : control_(control), progress_(progress), plan_(plan), shape_(std::move(shape)), rank_(rank) {}
  void before(const Action& action) override {
    control_.check();
    progress_.begin(activity_of(action, plan_, shape_, rank_));
  }
  void after(const Action&, Clock::time_point, Clock::time_point) override { progress_.end(); }

 private:
  Control& control_;
  Progress& progress_;
  const Plan& plan_;
  const PipelineShape shape_;
  const int64_t rank_;
};

}  // namespace

Loading RankSession::loading() {
  const auto forward = std::make_shared<Activity>();
  const Run& run = job_.run;
  DataWorkers workers = data_workers_of(run.data_workers, run.threads, place_);
  const int64_t ahead = minibatches_ahead(workers.count, run.batch_size);
  return {std::move(workers), ahead,
          [this, forward](int64_t minibatch) {
            *forward = progress_.now().activity;
            progress_.begin({"load samples of minibatch " + std::to_string(minibatch), {}, false});
          },
          [this, forward] { progress_.begin(*forward); }};
}

WorkerHooks RankSession::hooks(const Plan& plan, int64_t gradient_accumulation) {
  WorkerHooks hooks;
  hooks.observers.push_back(std::make_shared<ProgressObserver>(
      *control_, progress_, plan, shape_of(plan, gradient_accumulation), place_.rank));
  if (job_.device.is_cuda()) hooks.ranges = &cuda_plugin("device");
  return hooks;
}

void RankSession::tell_progress(std::function<void(const ProgressNow&)> tell) {
  const std::lock_guard lock(tell_mutex_);
  tell_ = std::move(tell);
}

void RankSession::say(const ProgressNow& now) {
  const std::lock_guard lock(tell_mutex_);
  if (!tell_) return;
  try {
    tell_(now);
  } catch (const std::exception&) {
    // Of rank 0's book, which the main thread hears of by itself.
  }
}

void RankSession::write_flight(const std::string& error) {
  if (folder_is_ours_) pipewright::write_flight(folder_, place_.rank, error, progress_);
}

}  // namespace pipewright
