#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>

#include <catch2/catch.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "graph/error.h"
#include "runtime/transport/ask_store.h"
#include "runtime/transport/signed_store.h"
#include "runtime/transport/store.h"
#include "tests/support/error_of.h"
#include "tests/support/stranger.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

bool is_served(const std::string& host, int64_t port) {
  return ask_store(host, port, std::chrono::steady_clock::now() + 10s).who == StoreAnswer::Who::kStore;
}

}  // namespace

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

TEST_CASE("store: a clone has as long to connect as was given, and not less than a busy server takes") {
  Store server = Store::serve(0);
  CHECK(Store::join("127.0.0.1", server.port(), 90s).clone().implementation().getTimeout() == 90s);
  CHECK(Store::join("127.0.0.1", server.port(), 2s).clone().implementation().getTimeout() == 20s);
}

TEST_CASE("store: who answers at an address is told apart from a store") {
  using Who = StoreAnswer::Who;
  const auto ask = [](const std::string& host, int64_t port, std::chrono::milliseconds patience) {
    return ask_store(host, port, std::chrono::steady_clock::now() + patience);
  };
  Store server = Store::serve(0);
  const StoreAnswer store = ask("localhost", server.port(), 10s);
  CHECK(store.who == Who::kStore);
  CHECK(store.host == "127.0.0.1");
  // Who says nothing is waited for in vain; who does is to be heard however busy the machine is.
  for (const auto& [manners, who, patience] : {std::tuple(Manners::kSilent, Who::kAnother, 300ms),
                                               {Manners::kCloses, Who::kAnother, 60000ms},
                                               {Manners::kGarbage, Who::kAnother, 60000ms},
                                               {Manners::kEcho, Who::kAnother, 60000ms},
                                               {Manners::kAnswersOnce, Who::kStore, 60000ms},
                                               {Manners::kDrops, Who::kNobody, 300ms}}) {
    const Stranger stranger(manners);
    const StoreAnswer answer = ask("127.0.0.1", stranger.port(), patience);
    CAPTURE(static_cast<int>(manners), answer.words);
    CHECK(answer.who == who);
    CHECK(answer.words.empty() == (who == Who::kStore));
  }
}

TEST_CASE("store: who waits for a key asks meanwhile whether to go on") {
  Store server = Store::serve(0);
  Store client = Store::join("127.0.0.1", server.port(), 10s);
  int asked = 0;
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(client.get("never", 600s,
                             [&] {
                               if (++asked == 2) throw RunError("it failed");
                             }),
                  RunError);
  CHECK(std::chrono::steady_clock::now() - begin < 60s);
  server.set("never", "now");
  CHECK(client.get("never", 10s) == "now");  // the connection is as good as before
}

TEST_CASE("store: served for one host only that host's loopback is listened on") {
  Store server = Store::serve(0);
  CHECK(is_served("127.0.0.1", server.port()));
  CHECK(is_served("localhost", server.port()));
  CHECK_FALSE(
      is_served("127.0.0.2", server.port()));  // another address of this host: what others would reach
  Store other = Store::serve(0, "", "", "127.0.0.2");
  CHECK(is_served("127.0.0.2", other.port()));
  CHECK_FALSE(is_served("127.0.0.1", other.port()));
}

TEST_CASE("store: an address that is not this host's own is served on all that are") {
  Store server = Store::serve(0, "", "", "192.0.2.1");
  CHECK(is_served("127.0.0.1", server.port()));
  CHECK(is_served("127.0.0.2", server.port()));
  CHECK(Store::join("127.0.0.1", server.port(), 10s).add("count", 3) == 3);
}

TEST_CASE("store: what a stranger writes is as if it were not there") {
  const std::string secret = new_secret();
  CHECK(secret.size() == 64);
  CHECK(secret != new_secret());
  Store server = Store::serve(0, "job", secret);
  Store client = Store::join("127.0.0.1", server.port(), 10s, "job", secret);
  client.set("mine", "value");
  client.set("empty", "");
  CHECK(server.try_get("mine") == "value");
  CHECK(server.try_get("empty") == "");

  // A stranger reads all, and may say what he likes, also with a code that he has seen.
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(server.port());
  options.waitWorkers = false;
  c10d::TCPStore stranger("127.0.0.1", options);
  const std::string seen = stranger.get_to_str("job/mine");
  CHECK(seen.substr(0, 5) == "value");
  for (const std::string& forged : {std::string("value"), std::string(), std::string(40, 'x'), seen,
                                    "other" + seen.substr(5), seen + "x", seen.substr(1)}) {
    stranger.set("job/theirs", std::vector<uint8_t>(forged.begin(), forged.end()));
    CHECK(server.has("theirs"));
    CHECK_FALSE(server.try_get("theirs"));
  }
  CHECK_THROWS_AS(server.get("theirs", 100ms), PeerError);
  std::thread late([&] { client.set("theirs", "true"); });
  CHECK(server.get("theirs", 20s) == "true");
  late.join();
  // Transports read through the same door.
  const std::string junk = "junk";
  stranger.set("job/gloo/0", std::vector<uint8_t>(junk.begin(), junk.end()));
  CHECK_THROWS_AS(server.implementation().get("gloo/0"), ForgedValue);
}

TEST_CASE("store: a rank with another secret, or none, is told") {
  Store server = Store::serve(0, "job", "secret");
  for (const std::string& secret : {std::string(), std::string("other")}) {
    const std::string message = pipewright::testing::error_of<InputError>(
        [&] { Store::join("127.0.0.1", server.port(), 10s, "job", secret); });
    CHECK_THAT(message, Catch::Contains("is of a job with a secret"));
  }
  // A server that is not ours (torchrun's agent) greets nobody.
  CHECK_NOTHROW(Store::join("127.0.0.1", server.port(), 10s, "another job", "secret"));
}

// What LibTorch calls is what the dynamic linker finds first.
TEST_CASE("store: no name server is asked who is at the other end of a connection") {
  auto* const found = reinterpret_cast<decltype(&getnameinfo)>(::dlsym(RTLD_DEFAULT, "getnameinfo"));
  REQUIRE(found);
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  char host[NI_MAXHOST] = {};
  REQUIRE(found(reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback, host, sizeof host, nullptr, 0,
                0) == 0);
  CHECK(std::string(host) == "127.0.0.1");  // "localhost", of /etc/hosts, if names were looked up
}
