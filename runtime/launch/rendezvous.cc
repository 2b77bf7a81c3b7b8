#include "runtime/launch/rendezvous.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "graph/error.h"
#include "runtime/control/control.h"
#include "runtime/control/heartbeat.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

std::string store_name(const Place& place) {
  // A restarted torchrun job finds its old keys in the agent's store: every attempt has its own.
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return std::string("pipewright/") + (attempt ? attempt : "0") + (place.job.empty() ? "" : "/" + place.job);
}

}  // namespace

Store serve_store(const Place& place) {
  return Store::serve(place.master_port, store_name(place), place.secret, place.master_address);
}

Store join_store(const Place& place, std::chrono::milliseconds patience) {
  const std::string name = store_name(place);
  const std::string where = place.master_address + ":" + std::to_string(place.master_port);
  const auto begin = Clock::now();
  const auto deadline = begin + patience;
  auto next_word = begin + 3s;
  while (true) {
    if (received_signal != 0) {
      throw Error(exit_code_of_signal(received_signal),
                  "interrupted while waiting for rank 0's store at " + where);
    }
    // Only where somebody listens is it worth to connect, which hears no signal.
    const auto now = Clock::now();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    const bool last = left <= 0ms;
    if (last || answers(place.master_address, place.master_port)) {
      try {
        // A busy server takes its time; one that never answers must not keep a signal waiting for ever.
        Store store = Store::join(place.master_address, place.master_port, std::clamp(left, 2000ms, 20000ms),
                                  name, place.secret);
        store.set_timeout(std::max(left, 20000ms));
        return store;
      } catch (const PeerError& error) {
        if (last) {
          throw PeerError(
              "rank " + std::to_string(place.rank) + " of " + std::to_string(place.world_size) +
                  ": nobody has served the job's store at " + where + " for " +
                  seconds_words(std::chrono::duration<double>(patience).count()) + ": " + error.what(),
              "start rank 0, which serves it, or the launcher; --start-timeout is how long is waited");
        }
      }
    }
    if (now > next_word) {
      std::fprintf(stderr, "rank %ld of %ld: waiting for rank 0 at %s (%s so far)\n", place.rank,
                   place.world_size, where.c_str(),
                   seconds_words(std::chrono::duration<double>(now - begin).count()).c_str());
      next_word = now + std::clamp<Clock::duration>(2 * (now - begin), 5s, 60s);
    }
    std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / 8, 20ms, 200ms));
  }
}

void claim_rank(Store& store, const Place& place) {
  if (store.add("claim/" + std::to_string(place.rank), 1) == 1) return;
  throw InputError("rank " + std::to_string(place.rank) + " is already there at " + place.master_address +
                       ":" + std::to_string(place.master_port),
                   "another job uses this address: choose another --master-port");
}

std::string gloo_address_of(const Place& place) {
  const bool one_host = place.master_address == "127.0.0.1" || place.master_address == "localhost";
  return one_host ? "127.0.0.1" : "";
}

}  // namespace pipewright
