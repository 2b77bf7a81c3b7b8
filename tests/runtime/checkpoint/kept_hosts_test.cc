// The state that several hosts keep together: who has whose copies, files on their way, what becomes whole,
// and what can be put together when hosts are lost or come back late.
#include <ATen/ops/full.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "graph/digest.h"
#include "graph/document.h"
#include "graph/error.h"
#include "runtime/checkpoint/checkpoint_keeper.h"
#include "runtime/checkpoint/kept_inventory.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/checkpoint/state_copies.h"
#include "tests/support/spawn.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

std::string random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string contents(const fs::path& file) { return read_regular_file(file); }

constexpr int64_t kTag = 4096;

// What a rank writes before minibatch n: a stage of its own.
NamedTensors tensors_of(int64_t rank, int64_t n) {
  return {{"weight", at::full({1 << 16}, static_cast<double>(1000 * rank + n))}};
}

CheckpointManifest manifest_of_ranks(int64_t n, int64_t ranks) {
  CheckpointManifest manifest;
  manifest.next_minibatch = n;
  manifest.pipeline_began = n;
  manifest.minibatches_per_epoch = 1000;
  manifest.cause = "interval";
  manifest.graph_digest = "xxh128:00000000000000000000000000000000";
  manifest.run.model = "mlp";
  manifest.run.data = "synthetic-images";
  manifest.run.output = "run";
  manifest.plan.model = "mlp";
  manifest.plan.strategy = "manual";
  manifest.plan.world_size = ranks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Stage stage;
    stage.nodes = {"node" + std::to_string(rank)};
    stage.ranks = {rank};
    stage.in_flight = 1;
    manifest.plan.stages.push_back(std::move(stage));
  }
  return manifest;
}

// Ranks of one stage each, on hosts that have a folder each, which keep states together.
class Hosts {
 public:
  explicit Hosts(std::vector<std::string> hosts, bool copies = true)
      : hosts_(std::move(hosts)), ring_(hosts_), copies_(copies) {
    for (const std::string& host : hosts_) {
      fs::create_directories(folder_of_host(host));
      if (!folders_.count(host))
        folders_[host] = std::make_unique<KeptFolder>(KeptFolder::Settings{place(host), 0, 1 << 20, true});
    }
  }
  int64_t ranks() const { return static_cast<int64_t>(hosts_.size()); }
  /// The run's place on a host.
  fs::path place(const std::string& host) const { return folder_ / host; }
  fs::path folder_of_host(const std::string& host) const { return kept_by_attempt(place(host), attempt_); }
  fs::path folder_of(int64_t rank) const { return folder_of_host(hosts_[static_cast<size_t>(rank)]); }
  KeptFolder& folder(const std::string& host) const { return *folders_.at(host); }
  StateCopies::Settings settings_of(int64_t rank) const {
    return {ring_, copies_, &folder(hosts_[static_cast<size_t>(rank)]), kTag};
  }

  /// All ranks write the states of `minibatches`, one behind the other.
  void keep(const std::vector<int64_t>& minibatches) {
    CheckpointKeeper keeper(folder_of(0), /*keep=*/1);
    spawn(make_local_world(ranks()), [&](int64_t rank, Transport& transport) {
      StateCopies copies(transport, settings_of(rank));
      if (rank == 0) {
        keeper.share([&](int64_t n, const fs::path& manifest) { copies.tell_whole(n, manifest); });
        for (const int64_t n : minibatches) keeper.begin(manifest_of_ranks(n, ranks()));
      }
      for (const int64_t n : minibatches) {
        const CheckpointFile file =
            write_checkpoint_file(folder_of(rank), n, "stage-" + std::to_string(rank), tensors_of(rank, n));
        copies.copy(n, {file});
        CheckpointStage stage;
        stage.state = file;
        keeper.take({n, {{rank, stage}}, /*kept=*/true});
      }
      if (rank == 0)
        while (keeper.pending() > 0) keeper.wait([&] { copies.check(); });
      copies.end([] {});
    });
  }

  std::vector<HostInventory> inventories(const std::vector<std::string>& of) const {
    std::vector<HostInventory> all;
    for (const std::string& host : of)
      all.push_back(HostInventory::from_text(inventory_of(place(host)).to_text()));
    return all;
  }
  std::set<std::string> files(const std::string& host, int64_t n) const {
    std::set<std::string> names;
    for (const auto& entry :
         fs::directory_iterator(checkpoints_of(folder_of_host(host)) / checkpoint_name(n)))
      names.insert(entry.path().filename().string());
    return names;
  }
  void next_attempt() {
    ++attempt_;
    for (auto& [host, folder] : folders_)
      folder = std::make_unique<KeptFolder>(KeptFolder::Settings{place(host), attempt_, 1 << 20, true});
  }

 private:
  const std::vector<std::string> hosts_;  // by rank
  const HostRing ring_;
  const bool copies_;
  int64_t attempt_ = 0;
  TemporaryFolder folder_;
  std::map<std::string, std::unique_ptr<KeptFolder>> folders_;  // by host
};

}  // namespace

TEST_CASE("a ring of hosts: each rank's copy is on the next host, and all of its ranks have a share") {
  const HostRing one({"a", "a", "a"});
  CHECK(one.hosts() == 1);
  CHECK_FALSE(one.keeper_of(1));
  CHECK(one.kept_by(0).empty());

  const HostRing ring({"b", "b", "a", "a", "c", "a"});
  CHECK(ring.hosts() == 3);
  CHECK(ring.ranks_of(1) == std::vector<int64_t>{2, 3, 5});
  CHECK(ring.is_first(4));
  CHECK_FALSE(ring.is_first(3));
  CHECK(ring.keeper_of(0) == 2);
  CHECK(ring.keeper_of(1) == 3);
  CHECK(ring.keeper_of(2) == 4);
  CHECK(ring.keeper_of(5) == 4);
  CHECK(ring.keeper_of(4) == 0);
  CHECK(ring.kept_by(4) == std::vector<int64_t>{2, 3, 5});

  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::string> hosts(1 + random() % 12);
    for (std::string& host : hosts) host = std::string(1, static_cast<char>('a' + random() % 4));
    const HostRing drawn(hosts);
    int64_t kept = 0;
    for (int64_t rank = 0; rank < static_cast<int64_t>(hosts.size()); ++rank) {
      const auto keeper = drawn.keeper_of(rank);
      REQUIRE(keeper.has_value() == (drawn.hosts() > 1));
      if (keeper) REQUIRE(drawn.host_of(*keeper) != drawn.host_of(rank));
      kept += static_cast<int64_t>(drawn.kept_by(rank).size());
    }
    REQUIRE(kept == (drawn.hosts() > 1 ? static_cast<int64_t>(hosts.size()) : 0));
  }
}

TEST_CASE("files travel whole, of whatever size, and the sender knows") {
  const TemporaryFolder folder;
  const std::vector<size_t> sizes = {
      0, 1, kFilePieceBytes - 1, kFilePieceBytes, kFilePieceBytes + 1, 3 * kFilePieceBytes + 5};
  fs::create_directory(folder / "there");
  spawn(make_local_world(2), [&](int64_t rank, Transport& transport) {
    if (rank == 0) {
      FileSender sender(transport, 1, kTag);
      for (const size_t size : sizes) {
        const fs::path file = folder / ("file" + std::to_string(size));
        write_file(file, random_bytes(size, size));
        sender.send(17, file);
        CHECK(contents(folder / "there" / file.filename()) == contents(file));
      }
      sender.end();
    } else {
      std::vector<size_t> whole;
      FileReceiver(transport, 0, kTag)
          .receive([&](const TravellingFile& file) { return folder / "there" / file.name; },
                   [&](const TravellingFile& file, const fs::path& path) {
                     CHECK(file.minibatch == 17);
                     CHECK(static_cast<int64_t>(fs::file_size(path)) == file.bytes);
                     whole.push_back(static_cast<size_t>(file.bytes));
                   },
                   [](const RunError& error) { throw error; });
      CHECK(whole == sizes);
    }
  });
}

TEST_CASE(
    "a file that cannot be written where it goes is said to be so, and the next ones come all the same") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "there" / "none" / "file");
  const std::vector<size_t> sizes = {0, 5, 3 * kFilePieceBytes + 5};
  spawn(make_local_world(2), [&](int64_t rank, Transport& transport) {
    if (rank == 0) {
      FileSender sender(transport, 1, kTag);
      for (const size_t size : sizes) {
        write_file(folder / "file", random_bytes(size, size));
        for (const int64_t minibatch : {0, 1, 2})  // the others cannot be placed, or lie on a folder
          CHECK(sender.send(minibatch, folder / "file") == (minibatch == 1));
        CHECK(contents(folder / "there" / "file") == contents(folder / "file"));
      }
      sender.end();
    } else {
      size_t refused = 0;
      FileReceiver(transport, 0, kTag)
          .receive(
              [&](const TravellingFile& file) -> fs::path {
                if (file.minibatch == 0) throw RunError("no place");
                return folder / "there" / (file.minibatch == 1 ? "file" : "none/file");
              },
              [](const TravellingFile&, const fs::path&) {}, [&](const RunError&) { ++refused; });
      CHECK(refused == 2 * sizes.size());
    }
  });
}

TEST_CASE("a piece that is lost on the way is found at the next one") {
  const TemporaryFolder folder;
  // As FileSender does it, but for the first piece.
  class Forgetful : public Transport {
   public:
    explicit Forgetful(Transport& transport) : transport_(transport) {}
    int64_t rank() const override { return transport_.rank(); }
    int64_t world_size() const override { return transport_.world_size(); }
    std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
      if (tag == kTag + 1 && pieces_++ == 0) return std::make_unique<Nothing>();
      return transport_.send(std::move(tensor), peer, tag);
    }
    std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
      if (pieces_ == 1) return std::make_unique<Nothing>();  // the answer to the lost one
      return transport_.receive(std::move(tensor), peer, tag);
    }
    void abort(const std::string& why) override { transport_.abort(why); }

   private:
    struct Nothing : Request {
      void wait() override {}
    };
    Transport& transport_;
    int pieces_ = 0;
  };
  write_file(folder / "file", random_bytes(2 * kFilePieceBytes, 1));
  fs::create_directory(folder / "there");
  auto world = make_local_world(2);
  auto sending = std::async(std::launch::async, [&] {
    Forgetful forgetful(*world[0]);
    FileSender(forgetful, 1, kTag).send(1, folder / "file");
  });
  CHECK_THROWS_WITH(FileReceiver(*world[1], 0, kTag)
                        .receive([&](const TravellingFile& file) { return folder / "there" / file.name; },
                                 [](const TravellingFile&, const fs::path&) { FAIL("is not whole"); },
                                 [](const RunError& error) { throw error; }),
                    Catch::Contains("a piece before them is missing"));
  world[0]->abort("the other end has failed");
  CHECK_THROWS_AS(sending.get(), PeerError);
}

TEST_CASE("both ends of a file on its way stop waiting when their transport is aborted") {
  const TemporaryFolder folder;
  write_file(folder / "file", random_bytes(4 * kFilePieceBytes, 1));
  fs::create_directory(folder / "there");
  auto world = make_local_world(2);
  std::promise<void> came;
  // It takes the first piece and hears nothing from then on.
  auto receiving = std::async(std::launch::async, [&] {
    FileReceiver(*world[1], 0, kTag)
        .receive(
            [&](const TravellingFile& file) {
              came.set_value();
              return folder / "there" / file.name;
            },
            [](const TravellingFile&, const fs::path&) {}, [](const RunError& error) { throw error; });
  });
  SECTION("that of the sender, and then of the receiver") {
    class Stuck : public Transport {
     public:
      explicit Stuck(Transport& transport) : transport_(transport) {}
      int64_t rank() const override { return transport_.rank(); }
      int64_t world_size() const override { return transport_.world_size(); }
      std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
        return transport_.send(std::move(tensor), peer, tag);
      }
      std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
        return transport_.receive(std::move(tensor), peer, tag + 100);  // an answer that never comes
      }
      void abort(const std::string& why) override { transport_.abort(why); }

     private:
      Transport& transport_;
    };
    Stuck stuck(*world[0]);
    auto sending =
        std::async(std::launch::async, [&] { FileSender(stuck, 1, kTag).send(1, folder / "file"); });
    came.get_future().wait();
    world[0]->abort("the run ends");
    CHECK_THROWS_WITH(sending.get(), Catch::Contains("the run ends"));
    CHECK(receiving.wait_for(0s) == std::future_status::timeout);
  }
  SECTION("that of a receiver to which nothing comes") {}
  world[1]->abort("the run ends here too");
  CHECK_THROWS_WITH(receiving.get(), Catch::Contains("the run ends here too"));
}

TEST_CASE("states of two hosts: each has all files of the last whole one, and of no other") {
  Hosts hosts({"a", "a", "b"});
  hosts.keep({20, 40, 60});
  for (const char* host : {"a", "b"}) {
    CHECK(hosts.files(host, 60) == std::set<std::string>{"manifest.json", "stage-0.safetensors",
                                                         "stage-1.safetensors", "stage-2.safetensors"});
    CHECK(list_checkpoints(hosts.folder_of_host(host)).size() == 1);
    const Checkpoint checkpoint = open_checkpoint(list_checkpoints(hosts.folder_of_host(host)).front());
    verify_checkpoint(checkpoint);
    CHECK(checkpoint.manifest.next_minibatch == 60);
    CHECK(newest_whole(hosts.inventories({host}), {})->minibatch == 60);
  }
}

TEST_CASE("of three hosts each has its own files and a copy of its neighbour's, and any two have all") {
  Hosts hosts({"a", "b", "c"});
  hosts.keep({20, 40});
  CHECK(hosts.files("b", 40) ==
        std::set<std::string>{"manifest.json", "stage-0.safetensors", "stage-1.safetensors"});
  for (const std::vector<std::string>& left :
       {std::vector<std::string>{"a", "b"}, {"b", "c"}, {"c", "a"}, {"b", "a"}}) {
    const auto choice = newest_whole(hosts.inventories(left), {});
    REQUIRE(choice);
    CHECK(choice->minibatch == 40);
    for (int64_t host = 0; host < 2; ++host) {
      for (const CheckpointFile& file : choice->files) {
        if (!choice->has(host, file.file)) CHECK(choice->has(choice->source_for(host, file.file), file.file));
      }
    }
  }
  for (const char* alone : {"a", "b", "c"}) CHECK_FALSE(newest_whole(hosts.inventories({alone}), {}));
}

TEST_CASE("without copies a state is whole only while all hosts are there") {
  Hosts hosts({"a", "b"}, /*copies=*/false);
  hosts.keep({20});
  CHECK(hosts.files("b", 20) == std::set<std::string>{"manifest.json", "stage-1.safetensors"});
  const auto choice = newest_whole(hosts.inventories({"a", "b"}), {});
  REQUIRE(choice);
  CHECK(choice->lacks_any(0));
  CHECK(choice->source_for(0, "stage-1.safetensors") == 1);
  CHECK_FALSE(newest_whole(hosts.inventories({"a"}), {}));
}

TEST_CASE(
    "what a host heard of last counts, and files that came before: the others need not have heard of it") {
  Hosts hosts({"a", "b", "c"});
  hosts.keep({20, 40});
  // Host c was cut off between its files and the word that all have theirs.
  const fs::path whole = checkpoints_of(hosts.folder_of_host("c")) / checkpoint_name(40);
  fs::remove(whole / kManifestName);
  fs::rename(whole, partial_checkpoint(hosts.folder_of_host("c"), 40));
  CHECK(newest_whole(hosts.inventories({"b", "c"}), {})->minibatch == 40);
  CHECK(newest_whole(hosts.inventories({"c", "b"}), {})->minibatch == 40);
  // Of a file that was still on its way the bytes are not those of the manifest.
  fs::resize_file(partial_checkpoint(hosts.folder_of_host("c"), 40) / "stage-2.safetensors", 1000);
  CHECK_FALSE(newest_whole(hosts.inventories({"b", "c"}), {}));
  CHECK(newest_whole(hosts.inventories({"a", "b", "c"}), {})->minibatch == 40);
}

TEST_CASE("a damaged byte is as if the file were not there") {
  Hosts hosts({"a", "b"});
  hosts.keep({20});
  const fs::path file =
      checkpoints_of(hosts.folder_of_host("a")) / checkpoint_name(20) / "stage-1.safetensors";
  std::string bytes = contents(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(file, bytes);
  const auto choice = newest_whole(hosts.inventories({"a", "b"}), {});
  REQUIRE(choice);
  CHECK_FALSE(choice->has(0, "stage-1.safetensors"));
  CHECK(choice->source_for(0, "stage-1.safetensors") == 1);
}

TEST_CASE("a host that comes back late with a newer state of another past does not count") {
  Hosts hosts({"a", "b", "c"});
  hosts.keep({60});
  // Without b and c nothing newer than minibatch 40 was there: a went on from it, and has 50 now.
  const std::vector<AttemptStart> starts = {{0, 0}, {1, 40}};
  CHECK_FALSE(newest_whole(hosts.inventories({"a", "b", "c"}), starts));
  CHECK(newest_whole(hosts.inventories({"a", "b", "c"}), {{0, 0}, {1, 60}})->minibatch == 60);
  Hosts alone({"a", "b"});
  alone.next_attempt();
  for (const char* host : {"a", "b"}) fs::create_directories(alone.folder_of_host(host));
  alone.keep({50});
  auto all = alone.inventories({"a", "b"});
  for (const HostInventory& late : hosts.inventories({"b", "c"})) all.push_back(late);
  CHECK(newest_whole(all, starts)->minibatch == 50);
}

TEST_CASE("a rank that is lost while it sends leaves the state before as the newest") {
  Hosts hosts({"a", "b"});
  hosts.keep({20});
  auto world = make_local_world(2);
  {
    StateCopies first(*world[0], hosts.settings_of(0)), second(*world[1], hosts.settings_of(1));
    const CheckpointFile own = write_checkpoint_file(hosts.folder_of(1), 40, "stage-1", tensors_of(1, 40));
    first.abandon();  // killed: nothing is taken any more
    auto copying = std::async(std::launch::async, [&] { second.copy(40, {own}); });
    CHECK(copying.wait_for(50ms) == std::future_status::timeout);
    world[1]->abort("rank 0 is lost");
    CHECK_THROWS_AS(copying.get(), PeerError);
  }
  for (const char* host : {"a", "b"}) CHECK(newest_whole(hosts.inventories({host}), {})->minibatch == 20);
}

TEST_CASE("a host that has lost its folder does not get the copy, and gets the next when it is there again") {
  Hosts hosts({"a", "b"});
  note_start(hosts.place("a").parent_path(), {0, 0}, /*first=*/true);
  auto world = make_local_world(2);
  StateCopies first(*world[0], hosts.settings_of(0)), second(*world[1], hosts.settings_of(1));
  const auto send = [&](int64_t n) {
    second.copy(n, {write_checkpoint_file(hosts.folder_of(1), n, "stage-1", tensors_of(1, n))});
  };
  fs::remove_all(hosts.place("a"));
  CHECK_THROWS_WITH(send(40), Catch::Contains("the copy of stage-1.safetensors") &&
                                  Catch::Contains("could not be written there"));
  CHECK_THROWS_AS(hosts.folder("a").demand(), RunError);  // and makes it
  send(60);
  CHECK(fs::exists(partial_checkpoint(hosts.folder_of(0), 60) / "stage-1.safetensors"));
  fs::remove_all(hosts.place("b"));
  CHECK_THROWS_WITH(second.copy(60, {{"stage-1.safetensors", 1, ""}}), Catch::Contains("has gone"));
  for (StateCopies* copies : {&first, &second}) {
    copies->check();
    copies->abandon();
  }
  remove_kept_place(hosts.place("a"));
}

TEST_CASE("copies end on all ranks with the last that ends, also where nothing was kept") {
  Hosts hosts({"a", "b", "b", "c"});
  std::atomic<int> ended = 0;
  spawn(make_local_world(4), [&](int64_t rank, Transport& transport) {
    StateCopies copies(transport, hosts.settings_of(rank));
    if (rank == 3) std::this_thread::sleep_for(20ms);
    copies.end([] {});
    ++ended;
  });
  CHECK(ended == 4);
}

TEST_CASE("the room of a host: made once, an attempt's own, and gone with the run") {
  const TemporaryFolder run;
  const fs::path place = kept_state_of(run.path());
  make_kept_state(run.path(), 0, 1000, std::nullopt);
  const fs::path target = target_of_kept_place(place);
  CHECK(fs::is_symlink(place));
  CHECK(fs::is_directory(target));
  REQUIRE(hosts_of_kept_state(run.path()).size() == 1);
  const fs::path kept = checkpoints_of(kept_by_attempt(place, 0)) / checkpoint_name(40);
  fs::create_directories(kept);
  fs::create_directories(partial_checkpoint(kept_by_attempt(place, 0), 60));
  CHECK(newest_kept(run.path()) == 40);

  make_kept_state(run.path(), 2, 1000, kept);
  CHECK(target_of_kept_place(place) == target);
  CHECK(list_kept_attempts(place).size() == 1);
  CHECK(newest_kept(run.path()) == 40);
  // A rank of attempt 0 that was stopped meanwhile writes into nothing.
  CHECK_THROWS_AS(write_checkpoint_file(kept_by_attempt(place, 0), 60, "stage-0", tensors_of(0, 60)),
                  RunError);

  make_kept_state(run.path(), 3, 1000, std::nullopt);
  CHECK_FALSE(newest_kept(run.path()));

  fs::remove_all(target);  // the host has been started anew
  make_kept_state(run.path(), 4, 1000, std::nullopt);
  CHECK(fs::is_directory(kept_by_attempt(place, 4)));
  const fs::path second = target_of_kept_place(place);
  CHECK(second != target);
  remove_kept_state(run.path());
  CHECK_FALSE(fs::exists(second));
  CHECK_FALSE(fs::is_symlink(place));
}

TEST_CASE("a job that ends early makes a checkpoint of what hosts have, each of which is asked for it") {
  const TemporaryFolder run;
  Hosts hosts({"a", "b", "c"});
  hosts.keep({20, 40});
  std::vector<std::string> asked;
  const auto targets = std::map<std::string, fs::path>{{"a", "/dev/shm/pipewright-kept-test-a"},
                                                       {"b", "/dev/shm/pipewright-kept-test-b"},
                                                       {"c", "/dev/shm/pipewright-kept-test-c"}};
  for (const auto& [host, target] : targets) fs::create_directory_symlink(target, run / (".kept-" + host));
  // Host a has gone; the others copy what they have.
  const OnHost on_host = [&](const std::string& host, const std::vector<std::string>& words) {
    asked.push_back(host + " " + words[0]);
    if (host == "a" || words[0] != "cp") return false;
    CHECK(words[2] == targets.at(host));
    fs::copy(hosts.place(host), words[3], fs::copy_options::recursive);
    return true;
  };
  const fs::path saved = save_kept_state(run.path(), on_host);
  CHECK(saved == checkpoints_of(run.path()) / checkpoint_name(40));
  verify_checkpoint(open_checkpoint(saved));
  CHECK(save_kept_state(run.path(), on_host).empty());  // nothing newer
  CHECK(asked.size() == 6);
  remove_kept_states(run.path(), on_host);
  CHECK(asked.size() == 9);
  CHECK(hosts_of_kept_state(run.path()).empty());
  CHECK_FALSE(fs::exists(run / ".kept.home"));
}

TEST_CASE("a folder that is removed while it is written into is there again for the next state") {
  const TemporaryFolder run;
  const fs::path place = kept_state_of(run.path());
  make_kept_state(run.path(), 3, 1000, std::nullopt);
  note_start(run.path(), {3, 0}, /*first=*/true);
  KeptFolder folder({place, 3, 1000, /*makes=*/true}), others({place, 3, 1000, /*makes=*/false});
  folder.demand();
  others.demand();
  const fs::path target = target_of_kept_place(place);
  SECTION("its memory") { fs::remove_all(target); }
  SECTION("the link to it") { fs::remove(place); }
  SECTION("what the attempt has in it") { fs::remove_all(folder.path()); }
  CHECK_THROWS_WITH(others.demand(), Catch::Contains(target.string()) && Catch::Contains("has gone"));
  CHECK_FALSE(fs::exists(folder.path()));
  CHECK_THROWS_WITH(folder.demand(), Catch::Contains(target.string()));
  folder.demand();
  others.demand();
  CHECK_FALSE(target_of_kept_place(place).empty());
  CHECK_FALSE(fs::exists(target));  // nothing is left behind where the link alone was removed
  // Cut off, and come back.
  fs::remove_all(folder.path());
  note_start(run.path(), {4, 20}, /*first=*/false);
  CHECK_THROWS_AS(folder.demand(), RunError);
  CHECK_FALSE(fs::exists(folder.path()));
  remove_kept_state(run.path());
}

TEST_CASE("a folder that is given up gives its memory back, but not that of a later attempt") {
  const TemporaryFolder run;
  const fs::path place = kept_state_of(run.path());
  make_kept_state(run.path(), 0, 1000, std::nullopt);
  note_start(run.path(), {0, 0}, /*first=*/true);
  KeptFolder folder({place, 0, 1000, /*makes=*/true});
  folder.demand();
  const fs::path target = target_of_kept_place(place);
  SECTION("of a later attempt") {
    make_kept_state(run.path(), 1, 1000, std::nullopt);
    folder.give_up();
    CHECK(fs::exists(kept_by_attempt(place, 1)));
  }
  SECTION("its own") {
    folder.give_up();
    CHECK_FALSE(fs::exists(target));
    CHECK_THROWS_AS(folder.demand(), RunError);
    folder.demand();
  }
  remove_kept_state(run.path());
}

TEST_CASE("a state of which a rank could not write its part is left out, and the others become whole") {
  const TemporaryFolder folder;
  std::vector<std::string> lost;
  CheckpointKeeper keeper(folder.path(), /*keep=*/1, /*spares=*/true, [&](int64_t n, const std::string& why) {
    lost.push_back(std::to_string(n) + ": " + why);
  });
  const auto write = [&](int64_t n, const std::string& why = "") {
    CheckpointStage stage;
    stage.state = write_checkpoint_file(folder.path(), n, "stage-0", tensors_of(0, n));
    keeper.take({n, {{0, stage}}, /*kept=*/true, why});
  };
  for (const int64_t n : {20, 40, 60, 80}) keeper.begin(manifest_of_ranks(n, 1));
  write(20);
  CHECK(keeper.wait([] {}) == checkpoints_of(folder.path()) / "minibatch-20");
  write(40, "no room");
  CHECK_FALSE(keeper.wait([] {}));
  CHECK(keeper.pending() == 2);
  write(60);
  fs::remove_all(partial_checkpoint(folder.path(), 60));
  CHECK_FALSE(keeper.wait([] {}));
  CHECK(minibatch_of(list_checkpoints(folder.path()).front()) == 20);
  make_partial_checkpoint(folder.path(), 70);  // on another host, of one that was lost here
  write(80);
  CHECK(keeper.wait([] {}) == checkpoints_of(folder.path()) / "minibatch-80");
  CHECK_FALSE(fs::exists(partial_checkpoint(folder.path(), 70)));
  REQUIRE(lost.size() == 2);
  CHECK(lost[0] == "40: no room");
  CHECK_THAT(lost[1], Catch::StartsWith("60: ") && Catch::Contains("is not there as its rank wrote it"));
}

TEST_CASE("where memory has no room the state is beside the run") {
  const TemporaryFolder run;
  make_kept_state(run.path(), 0, int64_t{1} << 60, std::nullopt);
  CHECK_FALSE(fs::is_symlink(kept_state_of(run.path())));
  CHECK(fs::is_directory(kept_by_attempt(kept_state_of(run.path()), 0)));
  remove_kept_state(run.path());
  CHECK_FALSE(fs::exists(kept_state_of(run.path())));
}

TEST_CASE("where attempts went on is noted, and forgotten with the next job") {
  const TemporaryFolder run;
  CHECK(read_starts(run.path()).empty());
  note_start(run.path(), {0, 0}, true);
  note_start(run.path(), {1, 40}, false);
  note_start(run.path(), {3, 40}, false);
  const auto starts = read_starts(run.path());
  REQUIRE(starts.size() == 3);
  CHECK(starts[2].attempt == 3);
  CHECK(is_of_this_past(0, 40, starts));
  CHECK_FALSE(is_of_this_past(0, 60, starts));
  CHECK(is_of_this_past(3, 60, starts));
  note_start(run.path(), {0, 20}, true);
  CHECK(read_starts(run.path()).size() == 1);
  remove_kept_states(run.path(), {});
  CHECK(read_starts(run.path()).empty());
}
