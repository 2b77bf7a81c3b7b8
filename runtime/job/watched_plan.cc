#include "runtime/job/watched_plan.h"

#include <sys/stat.h>

#include "graph/document.h"

namespace pipewright {
namespace {

constexpr auto kEvery = std::chrono::milliseconds(100);
constexpr auto kHalfWritten = std::chrono::seconds(1);

}  // namespace

std::optional<WatchedPlan::Stamp> WatchedPlan::stamp() const {
  struct stat now {};
  if (::stat(file_.c_str(), &now) != 0) return std::nullopt;
  return Stamp{now.st_mtim.tv_sec, now.st_mtim.tv_nsec, now.st_size, static_cast<int64_t>(now.st_ino)};
}

std::optional<PlanDecision> WatchedPlan::decide(const RunNow& now) {
  const auto time = Clock::now();
  if (time - looked_ < kEvery) return std::nullopt;
  looked_ = time;
  const auto stamp = this->stamp();
  if (stamp != seen_) {
    seen_ = stamp;
    seen_since_ = time;
    done_with_ = !stamp;
  }
  if (done_with_) return std::nullopt;
  try {
    Plan plan = read_document<Plan>(file_);
    done_with_ = true;
    if (document_digest(plan) == document_digest(now.plan)) return std::nullopt;
    return PlanDecision{file_.string(), std::move(plan), "watch"};
  } catch (const Error&) {
    if (time - seen_since_ < kHalfWritten) return std::nullopt;
    done_with_ = true;
    throw;
  }
}

std::unique_ptr<AdaptPolicy> watched_plan(SpecOptions& options) {
  const std::string file = options.string("file", "");
  options.finish();
  if (file.empty()) options.fail("file", "missing", "give --adapt watch:file=NEXT.json");
  return std::make_unique<WatchedPlan>(file);
}

}  // namespace pipewright
