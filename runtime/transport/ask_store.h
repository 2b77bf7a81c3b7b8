// Is what answers at an address a store?
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace pipewright {

struct StoreAnswer {
  enum class Who {
    kNobody,   ///< the name is not known, or nobody listens
    kAnother,  ///< somebody listens who does not answer as a store does
    kStore
  };
  Who who = Who::kNobody;
  std::string host;   ///< of a store: numeric; no name server need be asked again
  std::string words;  ///< otherwise what was found: "it answers 'HTTP/1.0 400 Bad request'"
};

/// Tries each address of the name once, for 10 s and until `deadline` at most (only a name server may take
/// longer). c10d's client waits for a server's first answer for ever, and its words for all that goes wrong
/// are the same, so a store is asked for a sign of life on a socket of our own before c10d connects to it.
StoreAnswer ask_store(const std::string& host, int64_t port, std::chrono::steady_clock::time_point deadline);

}  // namespace pipewright
