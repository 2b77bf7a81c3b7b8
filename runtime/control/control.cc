#include "runtime/control/control.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "graph/file_watch.h"
#include "graph/json.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

// What a process may still do once it has given its store up, and the wait for lines of a job that has
// failed.
constexpr auto kLastWords = 2s;

// How often lines are handed over and failures looked for. Where ranks are many each asks less often: one
// process answers all of them.
std::chrono::milliseconds interval_of(int64_t world_size) {
  return 100ms * std::max<int64_t>(1, world_size / 16);
}

constexpr const char* kFinished = "finished";
constexpr const char* kDeliveries = "lines";  // of all ranks, counted

std::string line_key(int64_t rank, int64_t number) {
  return "line/" + std::to_string(rank) + "/" + std::to_string(number);
}

Failure interruption(int64_t rank) {
  return {rank, exit_code_of_signal(received_signal), words_of_signal(received_signal)};
}

std::string seconds_text(std::chrono::milliseconds time) {
  return seconds_words(static_cast<double>(time.count()) / 1000);
}

std::string named(int64_t rank) { return "rank " + std::to_string(rank); }

// The parts that say something, as one line.
std::string joined(std::initializer_list<std::string> parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : "; ") + part;
  }
  return text;
}

std::string it_was_in(const RankReport& report) {
  const std::string what = doing(report);
  return what.empty() ? "" : "last heard of in " + what;
}

}  // namespace

Control::Control(std::optional<Store> store, int64_t rank, int64_t world_size,
                 std::chrono::milliseconds timeout, std::function<void(const std::string&)> on_failure)
    : store_(std::move(store)),
      rank_(rank),
      world_size_(world_size),
      interval_(interval_of(world_size)),
      timeout_(timeout.count()),
      on_failure_(std::move(on_failure)),
      last_contact_(Clock::now()),
      collected_(static_cast<size_t>(world_size), 0),
      rank_finished_(static_cast<size_t>(world_size), false) {
  if (!store_) return;
  // Here and not in the thread: a rank that is stopped before its thread has run is missed all the same.
  store_->set(process_key(rank_), this_process().to_text());
  store_->set(beat_key(rank_), Beat{}.to_text());
  thread_ = std::thread([this] { run(); });
  guard_thread_ = std::thread([this] { guard(); });
}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  end_thread();
  if (guard_thread_.joinable()) guard_thread_.join();
}

void Control::end_thread() {
  if (!thread_.joinable()) return;
  // If the thread is stuck in a request to a store that no longer answers, guard() ends the process.
  thread_.join();
}

void Control::set_sink(std::function<void(int64_t, const std::string&)> sink) {
  const std::lock_guard lock(mutex_);
  sink_ = std::move(sink);
}

void Control::call_often(std::function<bool(Store&)> tick) {
  const std::lock_guard lock(mutex_);
  tick_ = std::move(tick);
}

void Control::watch(Progress& progress, std::function<void(const std::string&)> last_words) {
  const std::lock_guard lock(mutex_);
  progress_ = &progress;
  last_words_ = std::move(last_words);
}

void Control::store_is_served_by(int64_t rank) {
  if (!store_) return;
  RankReport report = read_report(*store_, rank);
  const std::lock_guard lock(mutex_);
  store_server_ = std::move(report);
}

// What is known without the store: "rank 0, which serves it: its process 12 on node3 has died; last heard of
// in forward of minibatch 7 since 0.1 s; here: rank 1, send activation of minibatch 6".
std::string Control::words_without_store() const {
  const std::lock_guard lock(mutex_);
  std::string server;
  if (store_server_ && store_server_->process && store_server_->rank != rank_) {
    RankReport report = *store_server_;
    report.state = state_of(*report.process);
    server = joined({named(report.rank) + ", which serves it: " + state_words(report), it_was_in(report)});
  }
  const std::string here = progress_ ? progress_->now().activity.operation : "";
  return joined({server, here.empty() ? "" : "here: " + named(rank_) + ", " + here});
}

void Control::set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout.count(); }

namespace {

std::vector<int64_t> missing_at(Store& store, const std::string& key, int64_t world_size) {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    if (!store.has(key + "/" + std::to_string(rank))) missing.push_back(rank);
  }
  return missing;
}

// The lowest of those that are there speaks for all.
bool speaks(int64_t rank, const std::vector<int64_t>& missing) {
  for (int64_t lower = 0; lower < rank; ++lower) {
    if (!std::binary_search(missing.begin(), missing.end(), lower)) return false;
  }
  return true;
}

// Grows whenever one of them gets something done.
int64_t work_of(Store& store, const std::vector<int64_t>& ranks) {
  int64_t work = 0;
  for (const int64_t rank : ranks) {
    if (const auto beat = store.try_get(beat_key(rank))) work += Beat::from_text(*beat).work;
  }
  return work;
}

}  // namespace

void Control::barrier(const std::string& name, std::chrono::milliseconds patience, Meeting meeting) {
  check();
  if (!store_) return;
  const std::string key = "barrier/" + name;
  store_->set(key + "/" + std::to_string(rank_), "1");
  if (store_->add(key, 1) == world_size_) store_->set(key + "/open", "1");
  const auto begin = Clock::now();
  auto patient_since = begin;
  auto next_look = begin + std::min<Clock::duration>(patience / 4, 3s);
  auto next_word = begin + (meeting == Meeting::kStart ? 3s : 30s);
  int64_t work = -1;
  for (auto now = begin; !store_->has(key + "/open"); now = Clock::now()) {
    check();
    if (meeting == Meeting::kEnd && now > next_look) {
      const int64_t done = work_of(*store_, missing_at(*store_, key, world_size_));
      if (std::exchange(work, done) != done) patient_since = now;
      next_look = now + std::min<Clock::duration>(patience / 4, 3s);
    }
    const bool over = now - patient_since > patience;
    if (over || (meeting != Meeting::kPlain && now > next_word)) {
      const auto missing = missing_at(*store_, key, world_size_);
      const auto of_all = [&] { return ranks_words(missing) + " of " + std::to_string(world_size_); };
      if (missing.empty()) continue;  // they have come this moment
      if (over) {
        throw PeerError(
            "rank " + std::to_string(rank_) + ": after " + seconds_text(patience) + " " + of_all() +
                (missing.size() == 1 ? " has" : " have") + " not reached '" + name + "' at " +
                store_->address(),
            meeting == Meeting::kEnd
                ? "see what they last did in their logs; --start-timeout is how long is waited"
                : "start the missing ranks, with the same plan and rendezvous; --start-timeout is "
                  "how long is waited");
      }
      if (speaks(rank_, missing)) {
        std::fprintf(
            stderr, "waiting for %s %s %s (%s so far)\n", of_all().c_str(),
            meeting == Meeting::kStart ? "at" : "to end, at", store_->address().c_str(),
            seconds_text(std::chrono::duration_cast<std::chrono::milliseconds>(now - begin)).c_str());
      }
      next_word = now + std::clamp<Clock::duration>(2 * (now - begin), 5s, 60s);
    }
    std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / 8, 2ms, 200ms));
  }
}

void Control::post(std::string line) {
  if (!store_) {
    sink_lines(rank_, line);
    return;
  }
  const std::lock_guard lock(mutex_);
  lines_.push_back(std::move(line));
}

void Control::finish(std::chrono::milliseconds patience) {
  if (!store_) return;
  std::unique_lock lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
  const auto begin = Clock::now();
  while (!stop_ && !collected_all_) {
    // A job that has failed has nothing more to collect than last words.
    if (Clock::now() - begin >
        (failed_ ? std::min<std::chrono::milliseconds>(patience, kLastWords) : patience))
      break;
    changed_.wait_for(lock, interval_);
  }
  stop_ = true;
  lock.unlock();
  changed_.notify_all();
  end_thread();
}

bool Control::finishing() const {
  const std::lock_guard lock(mutex_);
  return finishing_;
}

void Control::check() const {
  if (failed_) {
    const auto failure = this->failure();
    const bool interrupted =
        failure->code == ExitCode::kInterrupted || failure->code == ExitCode::kTerminated;
    const bool own = interrupted || failure->rank == rank_;
    throw JobEnded(own ? failure->code : ExitCode::kPeerLost, failure->message, *failure);
  }
  if (!store_ && received_signal != 0 && !signals_held_) {
    const Failure failure = interruption(rank_);
    throw JobEnded(failure.code, failure.message, failure);
  }
}

Failure Control::fail(Failure failure) {
  if (!store_) return failure;
  if (const auto known = this->failure()) return *known;
  try {
    failure = announce(*store_, failure);
  } catch (const std::exception&) {
    // The store has gone: what we know ourselves is all there is.
  }
  take(failure);
  return failure;
}

Failure Control::peer_lost(const std::string& message) {
  // The peer may have left because of a failure elsewhere that is about to be announced, or has been.
  for (const auto deadline = Clock::now() + 1s; Clock::now() < deadline; std::this_thread::sleep_for(20ms)) {
    if (const auto known = failure()) return *known;
  }
  std::string waiting;
  try {
    if (store_) waiting = who_waits_for(read_reports(*store_, world_size_), rank_);
  } catch (const PeerError&) {
    // The store has gone as well.
  }
  return fail({rank_, ExitCode::kPeerLost, joined({message, waiting})});
}

std::optional<Failure> Control::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Control::take(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  failed_ = true;
  if (on_failure_) on_failure_(failure.message);
}

Failure Control::announce(Store& store, const Failure& failure) {
  return announce_failure(store, failure) ? failure : await_failure(store, timeout());
}

void Control::run() {
  std::optional<Store> store;
  try {
    store = store_->clone();
    auto next_beat = Clock::now();
    bool soon = false;
    while (true) {
      const bool last = [&] {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, soon ? interval_ / 20 : interval_, [this] { return stop_ || finishing_; });
        return stop_;
      }();
      deliver(*store);
      if (rank_ == 0) collect(*store);
      // Rank 0 may serve the store and be gone as soon as it knows that all have finished: others ask nothing
      // after they have said so. (Not `finishing_`: it may have been set since deliver() looked.)
      if (last || (said_finished_ && rank_ != 0)) break;
      if (received_signal != 0 && !failed_ && !signals_held_) take(announce(*store, interruption(rank_)));
      look_for_failure(*store);
      const auto tick = [&] {
        const std::lock_guard lock(mutex_);
        return tick_;
      }();
      soon = tick && !failed_ && tick(*store);
      if (Clock::now() >= next_beat) {
        beat_and_watch(*store);
        next_beat = Clock::now() + std::min<std::chrono::milliseconds>(1s, timeout() / 10);
      }
      std::unique_lock lock(mutex_);
      last_contact_ = Clock::now();
      if (!said_finished_) continue;
      changed_.wait_for(lock, 5ms, [this] { return stop_; });
    }
  } catch (const PeerError& error) {
    take({rank_, ExitCode::kPeerLost, joined({error.what(), words_without_store()})});
  } catch (const std::exception& error) {
    // The sink: rank 0 cannot write its book.
    const auto* coded = dynamic_cast<const Error*>(&error);
    Failure failure{rank_, coded ? coded->code() : ExitCode::kFailed,
                    "rank " + std::to_string(rank_) + ": " + error.what()};
    try {
      failure = announce(*store, failure);
    } catch (const PeerError&) {
    }
    take(failure);
  }
  const std::lock_guard lock(mutex_);
  stop_ = true;
  thread_ended_ = true;
  changed_.notify_all();
}

// A request to a store whose process is stopped never returns and cannot be cancelled. So when the background
// thread has not got through for the time-out, the worker is woken; and if the process has not ended by
// itself a little later, because one of its threads is stuck in such a request, it is ended here.
void Control::guard() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return thread_ended_; })) {
    if (Clock::now() - last_contact_ <= timeout()) continue;
    lock.unlock();
    const std::string why =
        joined({named(rank_) + ": the store has not answered for " + seconds_text(timeout()) +
                    ": the process that serves it (the launcher, or rank 0) is stopped or cut off",
                words_without_store()});
    take({rank_, ExitCode::kPeerLost, why});
    lock.lock();
    if (changed_.wait_for(lock, 2 * kLastWords, [this] { return thread_ended_; })) return;
    if (last_words_) last_words_(why);
    std::fprintf(stderr, "pipewright-runtime: error: %s\n", why.c_str());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(ExitCode::kPeerLost));
  }
}

void Control::look_for_failure(Store& store) {
  if (failed_) return;
  if (const auto failure = announced_failure(store)) take(*failure);
}

void Control::beat_and_watch(Store& store) {
  if (said_finished_) return;
  Progress* progress;
  {
    const std::lock_guard lock(mutex_);
    progress = progress_;
  }
  Beat beat;
  beat.number = ++beats_;
  if (progress) beat.progress = progress->now();
  beat.work = beat.progress.begun + bytes_to_disk();
  store.set(beat_key(rank_), beat.to_text());
  if (world_size_ == 1 || failed_) return;
  heed_store_server(store);
  watch_neighbour(store);
  if (!failed_) watch_progress(store, beat.progress);
}

// Once it has gone, nobody can ask what it did last.
void Control::heed_store_server(Store& store) {
  const auto server = [&] {
    const std::lock_guard lock(mutex_);
    return store_server_;
  }();
  if (!server || server->rank == rank_) return;
  RankReport report = read_report(store, server->rank);
  const std::lock_guard lock(mutex_);
  store_server_ = std::move(report);
}

void Control::watch_neighbour(Store& store) {
  const int64_t watched = (rank_ + 1) % world_size_;
  const RankReport report = read_report(store, watched);
  if (!report.beat || report.beat->finished) return;
  if (report.state == ProcessState::kGone) {
    look_for_failure(store);  // it may have said why it goes
    if (failed_) return;
    const auto reports = read_reports(store, world_size_);
    take(announce(store, {watched, ExitCode::kPeerLost,
                          joined({named(watched) + ": " + state_words(report), it_was_in(report),
                                  who_waits_for(reports, watched)})}));
    return;
  }
  if (report.beat->number != watched_beat_) {
    watched_beat_ = report.beat->number;
    watched_since_ = Clock::now();
  } else if (Clock::now() - watched_since_ > timeout()) {
    const auto reports = read_reports(store, world_size_);
    take(announce(store, {watched, ExitCode::kPeerLost,
                          joined({named(watched) + " has not been heard of for " + seconds_text(timeout()) +
                                      ": " + state_words(report),
                                  it_was_in(report), who_waits_for(reports, watched)})}));
  }
}

// The heartbeat comes from this thread: that it goes on says nothing about the main thread.
void Control::watch_progress(Store& store, const ProgressNow& now) {
  const double timeout = std::chrono::duration<double>(this->timeout()).count();
  if (now.stalled_seconds > timeout) {
    const auto reports = read_reports(store, world_size_);
    take(announce(store, {rank_, ExitCode::kPeerLost,
                          joined({named(rank_) + " does not get on: " + now.activity.operation + " since " +
                                      seconds_words(now.seconds) + file_waited_for(),
                                  who_waits_for(reports, rank_)})}));
    return;
  }
  if (now.activity.peers.empty() || now.seconds <= timeout) return;
  // It waits, which is right as long as somebody at the end of the chain works.
  const auto reports = read_reports(store, world_size_);
  const auto chain = waiting_chain(reports, rank_);
  const auto& last = reports[static_cast<size_t>(chain.back())];
  const bool circle = std::find(chain.begin(), chain.end() - 1, chain.back()) != chain.end() - 1;
  const bool all_long = std::all_of(chain.begin(), chain.end() - (circle ? 0 : 1), [&](int64_t rank) {
    const auto& beat = reports[static_cast<size_t>(rank)].beat;
    return beat && beat->progress.seconds > timeout;
  });
  if (!all_long) return;
  if (circle) {
    take(announce(store, {chain.back(), ExitCode::kPeerLost,
                          "ranks wait for each other: " + chain_words(reports, chain)}));
  } else if (last.beat && (last.beat->finished || last.beat->progress.activity.done)) {
    take(announce(store, {rank_, ExitCode::kPeerLost,
                          joined({named(chain.back()) + " has finished, but a message of it is missing",
                                  who_waits_for(reports, chain.back())})}));
  }
}

void Control::deliver(Store& store) {
  std::string lines;
  bool finishing;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& line : lines_) lines += line + "\n";
    lines_.clear();
    finishing = finishing_;
  }
  if (!lines.empty()) {
    if (rank_ == 0) {
      sink_lines(0, lines);
    } else {
      store.set(line_key(rank_, delivered_++), lines);
      store.add(kDeliveries, 1);
    }
  }
  if (finishing && !said_finished_) {
    Beat last;
    last.number = ++beats_;
    last.finished = true;
    store.set(beat_key(rank_), last.to_text());
    if (rank_ == 0) {
      rank_finished_[0] = true;
    } else {
      store.set(line_key(rank_, delivered_++), kFinished);  // the last word: nothing may follow it
    }
    said_finished_ = true;
  }
}

void Control::collect(Store& store) {
  // One question instead of one to each rank, where nothing has come. Last words are not counted: they are
  // looked for when this rank has said its own.
  const int64_t deliveries = store.add(kDeliveries, 0);
  if (deliveries == deliveries_seen_ && !rank_finished_[0]) return;
  deliveries_seen_ = deliveries;
  bool all = rank_finished_[0];
  for (int64_t rank = 1; rank < world_size_; ++rank) {
    const auto i = static_cast<size_t>(rank);
    while (!rank_finished_[i]) {
      const auto lines = store.try_get(line_key(rank, collected_[i]));
      if (!lines) break;
      store.erase(line_key(rank, collected_[i]++));
      if (*lines == kFinished) {
        rank_finished_[i] = true;
      } else {
        sink_lines(rank, *lines);
      }
    }
    all = all && rank_finished_[i];
  }
  if (!all) return;
  const std::lock_guard lock(mutex_);
  collected_all_ = true;
  changed_.notify_all();
}

void Control::sink_lines(int64_t rank, const std::string& lines) {
  std::function<void(int64_t, const std::string&)> sink;
  {
    const std::lock_guard lock(mutex_);
    sink = sink_;
  }
  if (!sink) return;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    sink(rank, lines.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace pipewright
