#include <catch2/catch.hpp>

#include "graph/error.h"
#include "runtime/transport/store.h"

using namespace pipewright;
using namespace std::chrono_literals;

TEST_CASE("store: what one process sets, another gets, counters add, absent keys are absent") {
  Store server = Store::serve(0);
  REQUIRE(server.port() > 0);
  Store client = Store::join("127.0.0.1", server.port(), 10s);
  Store other = client.clone();
  CHECK_FALSE(client.try_get("a").has_value());
  server.set("a", "one");
  CHECK(client.get("a", 5s) == "one");
  CHECK(other.try_get("a") == "one");
  CHECK(client.add("n", 2) == 2);
  CHECK(other.add("n", 3) == 5);
  other.erase("a");
  CHECK_FALSE(client.try_get("a").has_value());
}

TEST_CASE("store: a wait that nobody answers, a store that is not there and a port in use are named errors") {
  Store server = Store::serve(0);
  Store client = Store::join("127.0.0.1", server.port(), 10s);
  CHECK_THROWS_AS(client.get("never", 50ms), PeerError);
  CHECK_THROWS_AS(Store::serve(server.port()), InputError);
  const int64_t port = Store::serve(0).port();  // closed again at once
  try {
    Store::join("127.0.0.1", port, 1s);
    FAIL("joined a store that is not there");
  } catch (const PeerError& error) {
    CHECK_THAT(error.what(), Catch::Contains(std::to_string(port)));
  }
}
