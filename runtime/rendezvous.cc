#include "runtime/rendezvous.h"

#include <cstdlib>

#include "graph/error.h"
#include "runtime/control.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;

// In slices, so that a Ctrl-C while the others are awaited is heard.
Store join_store(const Place& place) {
  // A restarted torchrun job finds its old keys in the agent's store: every attempt has its own.
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const std::string name =
      std::string("pipewright/") + (attempt ? attempt : "0") + (place.job.empty() ? "" : "/" + place.job);
  const auto deadline = Clock::now() + kStartPatience;
  while (true) {
    try {
      return Store::join(place.master_address, place.master_port, std::chrono::seconds(2), name);
    } catch (const PeerError&) {
      if (received_signal != 0) {
        throw Error(exit_code_of_signal(received_signal), "interrupted while waiting for rank 0's store at " +
                                                              place.master_address + ":" +
                                                              std::to_string(place.master_port));
      }
      if (Clock::now() > deadline) throw;
    }
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
