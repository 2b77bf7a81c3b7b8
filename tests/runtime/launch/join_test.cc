// `join` and the launcher that answers it, by the files between them.
#include "runtime/launch/join.h"

#include <catch2/catch.hpp>
#include <future>
#include <string>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/run.h"
#include "runtime/checkpoint/run_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

/// What `join` returns for what a launcher in the folder says. An Error of either side is join's.
std::string joined(const TemporaryFolder& folder,
                   const std::function<std::string(const JoinRequest&)>& launcher) {
  auto asked = std::async(std::launch::async, [&] { return join_job(folder.path(), {"nohost", 2}, 20s); });
  while (asked.wait_for(5ms) != std::future_status::ready) answer_join_requests(folder.path(), launcher);
  return asked.get();
}

}  // namespace

TEST_CASE("join: what the launcher refuses is wrong use, not an answer") {
  const TemporaryFolder folder;
  Run run;
  run.model = "mlp";
  run.data = "synthetic-images";
  run.recovery.on_loss = "restart";
  write_document(folder / "run.json", run);
  const RunFolderLock lock(folder.path());
  CHECK(joined(folder, [](const JoinRequest& request) {
          return std::to_string(request.ranks) + " places on " + request.host;
        }) == "2 places on nohost");
  CHECK(error_of<InputError>([&] {
          joined(folder, [](const JoinRequest& request) -> std::string {
            throw InputError("host '" + request.host + "' does not answer");
          });
        }) == folder.path().string() + ": its launcher has refused: host 'nohost' does not answer");
}
