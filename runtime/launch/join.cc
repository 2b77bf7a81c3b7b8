#include "runtime/launch/join.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "graph/atomic_file.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/regular_file.h"
#include "graph/run.h"
#include "graph/run_fields.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/job/recovery_policy.h"

namespace pipewright {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr const char* kPrefix = ".join-";
constexpr const char* kRequest = ".json";
constexpr const char* kAnswer = ".answer";
constexpr const char* kRefused = "refused: ";

int64_t most_places() { return run_field_of("spares").rule.most; }

JoinRequest read_request(const fs::path& file) {
  const Json json = read_json_file(file);
  JsonReader reader(json, file.string());
  JoinRequest request{reader.string("host"), reader.integer("ranks", 1, most_places())};
  reader.finish();
  return request;
}

}  // namespace

std::string join_job(const fs::path& run_folder, const JoinRequest& request,
                     std::chrono::milliseconds patience) {
  if (request.ranks < 1 || request.ranks > most_places())
    throw InputError("--ranks " + std::to_string(request.ranks) + " is not in 1.." +
                     std::to_string(most_places()));
  const fs::path run_file = run_folder / "run.json";
  if (!file_exists(run_file) || !run_folder_is_held(run_folder)) {
    throw InputError(run_folder.string() + ": no run is under way there",
                     "Give the run folder of a job that `pipewright-runtime launch` has started.");
  }
  const Run run = read_document<Run>(run_file);
  if (on_loss_of(run) == OnLoss::kEnd) {
    throw InputError(run_folder.string() + ": its run takes no further ranks",
                     "Start it with --on-loss continue:profile=PROFILE.json, or restart.");
  }
  const std::string name = kPrefix + std::to_string(::getpid());
  const fs::path answer = run_folder / (name + kAnswer), asked = run_folder / (name + kRequest);
  std::error_code ignored;
  fs::remove(answer, ignored);
  Json json;
  json["host"] = request.host;
  json["ranks"] = request.ranks;
  write_file(asked, json_text(json));
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!file_exists(answer)) {
    if (std::chrono::steady_clock::now() > until) {
      fs::remove(asked, ignored);
      throw PeerError(run_folder.string() + ": its launcher has not answered",
                      "Does it still run, on a host that sees this folder?");
    }
    std::this_thread::sleep_for(20ms);
  }
  std::string words = read_file(answer);
  fs::remove(answer, ignored);
  if (words.rfind(kRefused, 0) == 0) throw InputError(run_folder.string() + ": its launcher has " + words);
  return words;
}

void answer_join_requests(const fs::path& run_folder,
                          const std::function<std::string(const JoinRequest&)>& answer) {
  std::vector<fs::path> requests;
  std::error_code error;
  for (fs::directory_iterator it(run_folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(kPrefix, 0) == 0 && name.ends_with(kRequest)) requests.push_back(it->path());
  }
  std::sort(requests.begin(), requests.end());
  for (const fs::path& request : requests) {
    std::string words;
    try {
      words = answer(read_request(request));
    } catch (const Error& refused) {
      words = std::string(kRefused) + refused.what();
    }
    fs::path answered = request;
    answered.replace_extension(kAnswer);
    write_file(answered, words);
    std::error_code ignored;
    fs::remove(request, ignored);
  }
}

}  // namespace pipewright
