// A socket that listens where the ranks of a job look for it, and nowhere else.
#pragma once

#include <cstdint>
#include <string>

namespace pipewright {

struct Listening {
  int descriptor = -1;  ///< bound, not listening yet; the caller closes it
  int64_t port = 0;
  std::string host;  ///< numeric; where this host reaches it
};

/// Binds a TCP socket on `port` (0: a free one) of `host`, an address or a name under which the others know
/// this host: only loopback for "localhost" and addresses like "127.0.0.1", otherwise the first address of
/// the name that is this host's and not loopback. Where there is none (a name that means 127.0.1.1 here, an
/// address that is translated on the way) all addresses. RunError if the port is taken.
Listening bind_socket(const std::string& host, int64_t port);

}  // namespace pipewright
