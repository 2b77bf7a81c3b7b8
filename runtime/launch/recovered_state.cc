#include "runtime/launch/recovered_state.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "graph/atomic_file.h"
#include "graph/digest.h"
#include "graph/error.h"
#include "runtime/checkpoint/checkpoint_keeper.h"
#include "runtime/checkpoint/file_stream.h"
#include "runtime/checkpoint/host_ring.h"
#include "runtime/checkpoint/kept_inventory.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/control/attempt_number.h"
#include "runtime/control/exchange.h"
#include "runtime/launch/rendezvous.h"
#include "runtime/schedule/kept_memory.h"
#include "runtime/transport/connect.h"
#include "runtime/transport/process_state.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// A choice: the run's start, a manifest behind this word, or the folder of a checkpoint.
const std::string kStart = "start";
const std::string kManifest = "manifest ";

class StateExchange {
 public:
  StateExchange(const Run& run, const Place& place)
      : run_(run),
        place_(place),
        patience_(static_cast<int64_t>(run.start_timeout_seconds * 1000)),
        store_(visit_store(place, patience_)),
        exchange_(store_, {place.rank, place.world_size, patience_}),
        ring_(hosts()),
        own_(ring_.host_of(place.rank)) {}

  RecoveredState take() {
    const bool is_first = ring_.is_first(place_.rank);
    if (is_first) exchange_.say(Topic::kKeptInventory, inventory_of(kept_state_of(run_.output)).to_text());
    if (place_.rank == 0) exchange_.say(Topic::kKeptChoice, choice_of_rank_0());
    const std::string choice = exchange_.said_by(0, Topic::kKeptChoice);
    if (choice == kStart) return {find_resume(run_, /*every_byte=*/false), "start"};
    if (choice.rfind(kManifest, 0) != 0) return {open_checkpoint(choice), "checkpoint"};
    if (is_first) exchange_.say(Topic::kKeptReady, put_together(choice.substr(kManifest.size())).string());
    // Nobody removes what he has before everybody has what he needs.
    for (int64_t host = 0; host < ring_.hosts(); ++host) said_on(host, Topic::kKeptReady);
    return {open_checkpoint(said_on(own_, Topic::kKeptReady)), "memory"};
  }

 private:
  std::string said_on(int64_t host, Topic topic) { return exchange_.said_by(ring_.first_of(host), topic); }

  std::vector<std::string> hosts() {
    exchange_.say(Topic::kHost, this_process().host);
    return exchange_.said_by_all(Topic::kHost);
  }

  const std::vector<HostInventory>& inventories() {
    for (auto host = static_cast<int64_t>(inventories_.size()); host < ring_.hosts(); ++host)
      inventories_.push_back(HostInventory::from_text(said_on(host, Topic::kKeptInventory)));
    return inventories_;
  }

  std::string choice_of_rank_0() {
    const auto kept = newest_whole(inventories(), read_starts(run_.output));
    if (const auto written = newest_written(run_, kept ? kept->minibatch : -1))
      return fs::absolute(written->folder).string();
    return kept ? kManifest + kept->manifest : kStart;
  }

  fs::path put_together(const std::string& manifest);
  void exchange(const KeptChoice& choice, const fs::path& into);
  /// Of the files of a choice those that one host gives another.
  static std::vector<CheckpointFile> given(const KeptChoice& choice, int64_t from, int64_t to);
  void send(Transport& transport, const KeptChoice& choice, int64_t host) const;
  void receive(Transport& transport, const KeptChoice& choice, int64_t host, const fs::path& into) const;

  const Run& run_;
  const Place& place_;
  const std::chrono::milliseconds patience_;
  Store store_;
  Exchange exchange_;
  const HostRing ring_;
  const int64_t own_;  // host
  std::vector<HostInventory> inventories_;
};

// The first rank of a host: the folder in which this has the state whole, among what the attempt keeps.
fs::path StateExchange::put_together(const std::string& manifest) {
  const auto choice = choice_of(manifest, inventories());
  if (!choice) throw PeerError("the hosts do not have the state that rank 0 has chosen");
  int64_t bytes = 0;
  for (const CheckpointFile& file : choice->files) bytes += file.bytes;
  ensure_kept_place(kept_state_of(run_.output), room_for_states(bytes));
  const fs::path own = kept_by_attempt(kept_state_of(run_.output), attempt_of_process());
  const fs::path partial = partial_checkpoint(own, choice->minibatch);
  std::error_code ignored;
  fs::remove_all(own, ignored);
  fs::create_directory(own);
  make_partial_checkpoint(own, choice->minibatch);
  const HostInventory& here = inventories_[static_cast<size_t>(own_)];
  for (const CheckpointFile& file : choice->files) {
    if (const KeptPart* part = here.find(file))
      fs::create_hard_link(part->folder / file.file, partial / file.file);
  }
  exchange(*choice, partial);
  write_file(partial / kManifestName, manifest);
  return take_for_whole(own, choice->minibatch, /*keep=*/1);
}

std::vector<CheckpointFile> StateExchange::given(const KeptChoice& choice, int64_t from, int64_t to) {
  std::vector<CheckpointFile> files;
  for (const CheckpointFile& file : choice.files)
    if (!choice.has(to, file.file) && choice.source_for(to, file.file) == from) files.push_back(file);
  return files;
}

// Among the first ranks of the hosts.
void StateExchange::exchange(const KeptChoice& choice, const fs::path& into) {
  bool any = false;
  for (int64_t host = 0; host < ring_.hosts(); ++host) any = any || choice.lacks_any(host);
  if (!any) return;
  ConnectSettings settings;
  settings.transport = "gloo";
  settings.gloo_address = gloo_address_of(place_);
  settings.timeout = patience_;
  const auto transport = connect_ranks(store_, "kept/links", own_, ring_.hosts(), settings);
  std::vector<std::future<void>> threads;  // they end before the transport goes
  for (int64_t host = 0; host < ring_.hosts(); ++host) {
    if (!given(choice, own_, host).empty())
      threads.push_back(std::async(std::launch::async, [&, host] { send(*transport, choice, host); }));
    if (!given(choice, host, own_).empty())
      threads.push_back(
          std::async(std::launch::async, [&, host] { receive(*transport, choice, host, into); }));
  }
  try {
    for (auto& thread : threads) {
      // A launcher that has gone would leave these ranks to themselves.
      while (thread.wait_for(1s) != std::future_status::ready) exchange_.said_by(0, Topic::kKeptChoice);
      thread.get();
    }
  } catch (...) {
    transport->abort("another file did not come");
    throw;
  }
}

void StateExchange::send(Transport& transport, const KeptChoice& choice, int64_t host) const {
  FileSender sender(transport, host, /*first_tag=*/0);
  for (const CheckpointFile& file : given(choice, own_, host)) {
    const KeptPart* part = inventories_[static_cast<size_t>(own_)].find(file);
    sender.send(choice.minibatch, part->folder / file.file);
  }
  sender.end();
}

void StateExchange::receive(Transport& transport, const KeptChoice& choice, int64_t host,
                            const fs::path& into) const {
  const auto files = given(choice, host, own_);
  FileReceiver(transport, host, /*first_tag=*/0)
      .receive([&](const TravellingFile& file) { return into / file.name; },
               [](const TravellingFile&, const fs::path&) {}, [](const RunError& error) { throw error; });
  for (const CheckpointFile& file : files) {
    if (digest_of_file(into / file.file) != file.digest)
      throw PeerError("host " + std::to_string(host) + " has sent " + file.file +
                      " otherwise than it was written");
  }
}

}  // namespace

RecoveredState recovered_state(const Run& run, const Place& place) {
  if (place.local_ranks == place.world_size) return newest_state(run);
  return StateExchange(run, place).take();
}

}  // namespace pipewright
