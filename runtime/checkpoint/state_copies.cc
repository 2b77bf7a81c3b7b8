#include "runtime/checkpoint/state_copies.h"

#include <chrono>

#include "graph/error.h"
#include "graph/regular_file.h"
#include "runtime/checkpoint/checkpoint_keeper.h"
#include "runtime/checkpoint/run_folder.h"

namespace pipewright {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

StateCopies::StateCopies(Transport& transport, Settings settings)
    : transport_(transport), settings_(std::move(settings)) {
  const HostRing& ring = settings_.ring;
  const int64_t rank = transport.rank(), copies = settings_.first_tag, manifests = copies + kFileStreamTags;
  if (settings_.copies) {
    if (const auto keeper = ring.keeper_of(rank)) to_keeper_.emplace(transport, *keeper, copies);
    for (const int64_t peer : ring.kept_by(rank))
      receive(peer, copies, [](const TravellingFile&, const fs::path&) {});
  }
  if (rank == 0) {
    for (int64_t host = 1; host < ring.hosts(); ++host)
      to_hosts_.emplace_back(transport, ring.first_of(host), manifests);
  } else if (ring.is_first(rank)) {
    receive(0, manifests, [this](const TravellingFile& manifest, const fs::path&) {
      take_for_whole(settings_.folder->path(), manifest.minibatch, /*keep=*/1, /*spares=*/true);
    });
  }
}

void StateCopies::receive(int64_t peer, int64_t tag, const FileReceiver::Whole& whole) {
  receiving_.push_back(std::async(std::launch::async, [this, peer, tag, whole] {
    try {
      FileReceiver(transport_, peer, tag)
          .receive([this](const TravellingFile& file) { return place_of(file); }, whole,
                   [this](const RunError&) { settings_.folder->give_up(); });
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
  }));
}

fs::path StateCopies::place_of(const TravellingFile& file) const {
  const fs::path& folder = settings_.folder->path();
  const fs::path place = partial_checkpoint(folder, file.minibatch) / file.name;
  make_partial_checkpoint(folder, file.minibatch);
  std::error_code none;
  fs::rename(spare_file(folder, place.stem().string()), place, none);
  return place;
}

void StateCopies::copy(int64_t n, const std::vector<CheckpointFile>& files) {
  if (!to_keeper_) return;
  for (const CheckpointFile& file : files) {
    const fs::path path = partial_checkpoint(settings_.folder->path(), n) / file.file;
    if (!file_exists(path)) throw RunError(path.string() + ": has gone");
    if (!to_keeper_->send(n, path))
      throw RunError("the copy of " + file.file + " on another host could not be written there");
  }
}

void StateCopies::tell_whole(int64_t n, const fs::path& manifest) {
  for (FileSender& host : to_hosts_) host.send(n, manifest);
}

void StateCopies::check() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(error_);
}

void StateCopies::end(const std::function<void()>& check) {
  ending_ = std::async(std::launch::async, [this] {
    if (to_keeper_) to_keeper_->end();
    for (FileSender& host : to_hosts_) host.end();
  });
  const auto wait_for = [&](const std::future<void>& thread) {
    while (thread.wait_for(20ms) != std::future_status::ready) {
      check();
      this->check();
    }
  };
  wait_for(ending_);
  ending_.get();
  for (const auto& thread : receiving_) wait_for(thread);
  this->check();
  ended_ = true;
}

void StateCopies::abandon() noexcept {
  if (ended_) return;
  try {
    transport_.abort("this rank has ended");
  } catch (const std::exception&) {
    // Its messages do not come any more in any case.
  }
}

}  // namespace pipewright
