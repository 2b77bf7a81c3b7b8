#include "runtime/control/board.h"

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr const char* kFailure = "failure";
constexpr const char* kFailureLock = "failure/lock";
constexpr const char* kBegun = "begun";
constexpr const char* kNewestKept = "kept/newest";

std::string of_rank(const char* kind, int64_t rank) { return std::string(kind) + "/" + std::to_string(rank); }
std::string claim_key(int64_t rank) { return of_rank("claim", rank); }
std::string process_key(int64_t rank) { return of_rank("process", rank); }
std::string beat_key(int64_t rank) { return of_rank("beat", rank); }

std::string meeting_key(const std::string& meeting) { return "barrier/" + meeting; }
std::string arrival_key(const std::string& meeting, int64_t rank) {
  return of_rank(meeting_key(meeting).c_str(), rank);
}
std::string open_key(const std::string& meeting) { return meeting_key(meeting) + "/open"; }

}  // namespace

bool Board::claim(int64_t rank) const { return store_->add(claim_key(rank), 1) == 1; }

void Board::set_process(int64_t rank, const ProcessName& process) const {
  store_->set(process_key(rank), process.to_text());
}

void Board::set_beat(int64_t rank, const Beat& beat) const { store_->set(beat_key(rank), beat.to_text()); }

std::optional<Beat> Board::beat_of(int64_t rank) const {
  const auto text = store_->try_get(beat_key(rank));
  if (!text) return std::nullopt;
  return Beat::from_text(*text);
}

RankReport Board::report_of(int64_t rank) const {
  RankReport report;
  report.rank = rank;
  if (const auto process = store_->try_get(process_key(rank))) {
    report.process = ProcessName::from_text(*process);
    report.state = state_of(*report.process);
  }
  // After the state: a rank that has gone may have said farewell before.
  report.beat = beat_of(rank);
  return report;
}

std::vector<RankReport> Board::reports_of_all(int64_t world_size) const {
  std::vector<RankReport> reports;
  for (int64_t rank = 0; rank < world_size; ++rank) reports.push_back(report_of(rank));
  return reports;
}

void Board::come_to(const std::string& meeting, int64_t rank, int64_t world_size) const {
  store_->set(arrival_key(meeting, rank), "1");
  if (store_->add(meeting_key(meeting), 1) == world_size) store_->set(open_key(meeting), "1");
}

bool Board::has_come_to(const std::string& meeting, int64_t rank) const {
  return store_->has(arrival_key(meeting, rank));
}

bool Board::is_open(const std::string& meeting) const { return store_->has(open_key(meeting)); }

bool Board::announce_failure(const Failure& failure) const {
  if (store_->add(kFailureLock, 1) != 1) return false;
  store_->set(kFailure, failure.to_text());
  return true;
}

Failure Board::await_failure(std::chrono::milliseconds timeout) const {
  return Failure::from_text(store_->get(kFailure, timeout));
}

std::optional<Failure> Board::failure() const {
  const auto text = store_->try_get(kFailure);
  if (!text) return std::nullopt;
  return Failure::from_text(*text);
}

void Board::set_begun() const { store_->set(kBegun, "yes"); }
bool Board::has_begun() const { return store_->has(kBegun); }

void Board::set_newest_kept(int64_t minibatch) const { store_->set(kNewestKept, std::to_string(minibatch)); }

std::optional<int64_t> Board::newest_kept() const {
  const auto text = store_->try_get(kNewestKept);
  if (!text) return std::nullopt;
  return std::stoll(*text);
}

}  // namespace pipewright
