// A place for a further rank, offered to a job that runs: `pipewright-runtime join`. Requests and answers are
// files in the run folder, where the launcher looks about once a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace pipewright {

struct JoinRequest {
  std::string host;  ///< "": the launcher's
  int64_t ranks = 1;
};

/// Asks the job that writes into `run_folder`, and waits `patience` for its launcher's answer, which it
/// returns. InputError unless a job runs there that takes ranks, for more ranks than --spares may be, and for
/// what the launcher refuses; PeerError if no answer comes.
std::string join_job(const std::filesystem::path& run_folder, const JoinRequest& request,
                     std::chrono::milliseconds patience);

/// The launcher's part: `answer` says what becomes of each request that is there, in order; its Error refuses
/// it.
void answer_join_requests(const std::filesystem::path& run_folder,
                          const std::function<std::string(const JoinRequest&)>& answer);

}  // namespace pipewright
