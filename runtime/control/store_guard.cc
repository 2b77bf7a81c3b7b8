#include "runtime/control/store_guard.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "graph/error.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

// What a process may still do once it has given its store up.
constexpr auto kToEndByItself = 4s;

}  // namespace

StoreGuard::StoreGuard(int64_t rank, FailureLatch& failure,
                       const std::atomic<std::chrono::milliseconds>& timeout)
    : rank_(rank), failure_(failure), timeout_(timeout), last_contact_(Clock::now()) {}

StoreGuard::~StoreGuard() {
  if (thread_.joinable()) thread_.join();
}

void StoreGuard::begin(std::chrono::milliseconds interval) {
  interval_ = interval;
  thread_ = std::thread([this] { run(); });
}

void StoreGuard::contact() {
  const std::lock_guard lock(mutex_);
  last_contact_ = Clock::now();
}

void StoreGuard::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void StoreGuard::watch(Progress& progress, LastWords last_words) {
  const std::lock_guard lock(mutex_);
  progress_ = &progress;
  last_words_ = std::move(last_words);
}

void StoreGuard::store_is_served_by(RankReport server) {
  const std::lock_guard lock(mutex_);
  server_ = std::move(server);
}

void StoreGuard::heed_server(Board board) {
  const auto server = [&] {
    const std::lock_guard lock(mutex_);
    return server_;
  }();
  if (server && server->rank != rank_) store_is_served_by(board.report_of(server->rank));
}

std::string StoreGuard::words_without_store() const {
  const std::lock_guard lock(mutex_);
  std::string server;
  if (server_ && server_->process && server_->rank != rank_) {
    RankReport report = *server_;
    report.state = state_of(*report.process);
    server = joined({"rank " + std::to_string(report.rank) + ", which serves it: " + state_words(report),
                     last_heard_of(report)});
  }
  const std::string here = progress_ ? progress_->now().activity.operation : "";
  return joined({server, here.empty() ? "" : "here: rank " + std::to_string(rank_) + ", " + here});
}

void StoreGuard::run() {
  const auto ended = [this] { return ended_; };
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, ended)) {
    if (Clock::now() - last_contact_ <= timeout_.load()) continue;
    lock.unlock();
    const std::string why =
        joined({"rank " + std::to_string(rank_) + ": the store has not answered for " +
                    seconds_words(timeout_.load()) +
                    ": the process that serves it (the launcher, or rank 0) is stopped or cut off",
                words_without_store()});
    failure_.take({rank_, ExitCode::kPeerLost, why});
    lock.lock();
    if (changed_.wait_for(lock, kToEndByItself, ended)) return;
    if (last_words_) last_words_(why);
    std::fprintf(stderr, "pipewright-runtime: error: %s\n", why.c_str());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(ExitCode::kPeerLost));
  }
}

}  // namespace pipewright
