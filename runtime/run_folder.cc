#include "runtime/run_folder.h"

#include <string>
#include <system_error>

#include "graph/error.h"
#include "runtime/checkpoint_keeper.h"

namespace pipewright {

namespace fs = std::filesystem;

void make_run_folder(const fs::path& folder, const std::optional<Checkpoint>& resume) {
  try {
    fs::create_directories(folder);
    for (const char* name : {"summary.json", "trace.json"}) fs::remove(folder / name);
    if (!resume) fs::remove(folder / "metrics.jsonl");
    if (fs::is_directory(folder / "flight")) fs::remove_all(folder / "flight");
    prepare_checkpoints(folder, resume);
    for (int rank = 0; fs::remove(folder / ("rank-" + std::to_string(rank) + ".log")); ++rank) {
    }
  } catch (const fs::filesystem_error& error) {
    throw RunError(folder.string() + ": cannot be prepared for a run: " + error.code().message(),
                   "choose another --output, or make room and right to write there");
  }
}

}  // namespace pipewright
