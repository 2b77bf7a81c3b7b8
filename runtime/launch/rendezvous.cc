#include "runtime/launch/rendezvous.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "graph/error.h"
#include "runtime/control/board.h"
#include "runtime/control/control.h"
#include "runtime/control/heartbeat.h"
#include "runtime/transport/interruptible.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

std::string store_name(const Place& place) {
  // A restarted torchrun job finds its old keys in the agent's store: every attempt has its own.
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return std::string("pipewright/") + (attempt ? attempt : "0") + (place.job.empty() ? "" : "/" + place.job);
}

std::string address(const Place& place) {
  return place.master_address + ":" + std::to_string(place.master_port);
}

std::string rank_of(const Place& place) {
  return "rank " + std::to_string(place.rank) + " of " + std::to_string(place.world_size);
}

// What answered instead of the store at the last try; told by one thread, asked by another.
class Found {
 public:
  void set(const std::string& words) {
    const std::lock_guard lock(mutex_);
    words_ = words;
  }
  std::string get() {
    const std::lock_guard lock(mutex_);
    return words_;
  }

 private:
  std::mutex mutex_;
  std::string words_;
};

void claim_rank(Store& store, const Place& place) {
  if (Board(store).claim(place.rank)) return;
  throw InputError("rank " + std::to_string(place.rank) + " is already there at " + address(place),
                   "another job uses this address: choose another --master-port");
}

void end_at_signal(const std::string& where) {
  if (received_signal != 0) throw Error(exit_code_of_signal(received_signal), "interrupted " + where);
}

}  // namespace

Store serve_store(const Place& place) {
  // The name of this host may be a name server's to say.
  const std::function<Store()> serve = [place] {
    return Store::serve(place.master_port, store_name(place), place.secret, place.master_address);
  };
  return interruptibly(serve, [&] { end_at_signal("while serving the job's store at " + address(place)); });
}

Store visit_store(const Place& place, std::chrono::milliseconds patience) {
  return Store::join(place.master_address, place.master_port, patience, store_name(place), place.secret);
}

JoinedStore join_store(const Place& place, std::chrono::milliseconds patience) {
  const auto begin = Clock::now();
  const auto found = std::make_shared<Found>();
  const std::function<JoinedStore()> join = [place, patience, found] {
    Store store = Store::join(place.master_address, place.master_port, patience, store_name(place),
                              place.secret, [&](const std::string& words) { found->set(words); });
    claim_rank(store, place);
    Store for_control = store.clone();
    return JoinedStore{std::move(store), std::move(for_control)};
  };
  auto next_word = begin + 3s;
  const auto check = [&] {
    end_at_signal("while waiting for rank 0's store at " + address(place));
    const auto now = Clock::now();
    // Behind Store::join's own words: for a name server, or a store that has stopped behind its first answer.
    if (now > begin + patience + 500ms) {
      throw PeerError(
          address(place) + " has not answered for " + seconds_words(patience),
          "a name server, or the process that serves the store (the launcher, or rank 0), is stopped or cut "
          "off; --start-timeout is how long is waited");
    }
    if (now < next_word) return;
    const std::string words = found->get();
    std::fprintf(stderr, "%s: waiting for rank 0 at %s (%s so far%s)\n", rank_of(place).c_str(),
                 address(place).c_str(), seconds_words(now - begin).c_str(),
                 words.empty() ? "" : ("; " + words).c_str());
    next_word = now + std::clamp<Clock::duration>(2 * (now - begin), 5s, 60s);
  };
  try {
    return interruptibly(join, check);
  } catch (const PeerError& error) {
    throw PeerError(rank_of(place) + ": " + error.what(), error.remedy());
  }
}

std::string gloo_address_of(const Place& place) {
  const bool one_host = place.master_address == "127.0.0.1" || place.master_address == "localhost";
  return one_host ? "127.0.0.1" : "";
}

}  // namespace pipewright
