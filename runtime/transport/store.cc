#include "runtime/transport/store.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "graph/error.h"
#include "graph/units.h"
#include "runtime/transport/ask_store.h"
#include "runtime/transport/listen.h"
#include "runtime/transport/open_files.h"
#include "runtime/transport/signed_store.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Store::Handle {
  c10::intrusive_ptr<c10d::Store> store;
  std::string host;
  int64_t port = 0;
};

namespace {

// What who serves a store with a secret writes first: it tells ranks of other jobs from those of this one.
constexpr const char* kGreeting = "greeting";

c10::intrusive_ptr<c10d::Store> named(c10::intrusive_ptr<c10d::Store> store, const std::string& name) {
  if (name.empty()) return store;
  return c10::make_intrusive<c10d::PrefixStore>(name, std::move(store));
}

c10::intrusive_ptr<c10d::Store> signed_with(const std::string& secret,
                                            c10::intrusive_ptr<c10d::Store> store) {
  if (secret.empty()) return store;
  return c10::make_intrusive<SignedStore>(std::move(store), secret);
}

// The first line of LibTorch's message: the rest is a C++ stack, which takes its time to be written down.
std::string first_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

template <typename Function>
auto reaching(const std::string& host, int64_t port, const std::string& what, Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    demand_descriptor("store at " + host + ":" + std::to_string(port) + ": " + what);
    throw PeerError(
        "store at " + host + ":" + std::to_string(port) + ": " + what + ": " + first_line(error),
        "the process that serves the store (the launcher, or rank 0) has gone or cannot be reached");
  }
}

// Waits till a store answers there. Its address, as a number.
std::string await_store(const std::string& host, int64_t port, std::chrono::milliseconds timeout,
                        const std::function<void(const std::string&)>& found) {
  const auto deadline = Clock::now() + timeout;
  const std::string where = host + ":" + std::to_string(port);
  for (auto pause = 20ms;; pause = std::min(2 * pause, 200ms)) {
    const StoreAnswer answer = ask_store(host, port, deadline);
    if (answer.who == StoreAnswer::Who::kStore) return answer.host;
    demand_descriptor("store at " + where + ": connect");
    if (found) found(answer.words);
    if (Clock::now() + pause < deadline) {
      std::this_thread::sleep_for(pause);
      continue;
    }
    const std::string waited = format_seconds(std::chrono::duration<double>(timeout).count());
    if (answer.who == StoreAnswer::Who::kNobody) {
      throw PeerError(
          "nobody has served the job's store at " + where + " for " + waited + ": " + answer.words,
          "start rank 0, which serves it, or the launcher; --start-timeout is how long is waited");
    }
    throw PeerError(where + " is no store of Pipewright: " + answer.words + " (waited for " + waited + ")",
                    "another server has the port, or the process that serves the store is stopped: choose "
                    "another --master-port for all ranks; --start-timeout is how long is waited");
  }
}

}  // namespace

Store::Store(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
Store::~Store() = default;
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;

Store Store::serve(int64_t port, const std::string& name, const std::string& secret,
                   const std::string& host) {
  auto handle = std::make_unique<Handle>();
  try {
    // By itself c10d listens on all addresses.
    const Listening bound = bind_socket(host, port);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(bound.port);
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = bound.descriptor;  // the server closes it
    handle->host = bound.host;
    handle->port = bound.port;
    handle->store =
        signed_with(secret, named(c10::make_intrusive<c10d::TCPStore>(handle->host, options), name));
    if (!secret.empty()) handle->store->set(kGreeting, std::string("welcome"));
  } catch (const std::exception& error) {
    demand_descriptor("serving the store on port " + std::to_string(port));
    throw InputError("cannot serve a store on port " + std::to_string(port) + ": " + first_line(error),
                     "another job may hold the port: choose another --master-port, or 0 for a free one");
  }
  return Store(std::move(handle));
}

Store Store::join(const std::string& host, int64_t port, std::chrono::milliseconds timeout,
                  const std::string& name, const std::string& secret,
                  const std::function<void(const std::string&)>& found) {
  // A store that is not there yet is no reason for a page of C++ stack. Once: the flag is the process's.
  static const bool quiet = (FLAGS_caffe2_log_level = c10::GLOG_FATAL, true);
  static_cast<void>(quiet);
  const std::string numeric = await_store(host, port, timeout, found);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = std::max<std::chrono::milliseconds>(timeout, 20s);  // a busy server takes its time
  auto handle = std::make_unique<Handle>();
  handle->host = host;
  handle->port = port;
  const auto plain = reaching(host, port, "cannot connect", [&]() -> c10::intrusive_ptr<c10d::Store> {
    return named(c10::make_intrusive<c10d::TCPStore>(numeric, options), name);
  });
  handle->store = signed_with(secret, plain);
  Store store(std::move(handle));
  const bool has_secret = store.has(kGreeting);
  if (has_secret && (secret.empty() || !store.try_get(kGreeting))) {
    throw InputError("the store at " + store.address() +
                         " is of a job with a secret, and this rank was given " +
                         (secret.empty() ? "none" : "another one"),
                     "another job uses this address, or PIPEWRIGHT_JOB_SECRET is not the same for all ranks");
  }
  return store;
}

Store Store::clone() const {
  auto handle = std::make_unique<Handle>(*handle_);
  handle->store =
      reaching(handle_->host, handle_->port, "cannot connect again", [&] { return handle_->store->clone(); });
  return Store(std::move(handle));
}

int64_t Store::port() const { return handle_->port; }
std::string Store::address() const { return handle_->host + ":" + std::to_string(handle_->port); }

void Store::set(const std::string& key, const std::string& value) {
  reaching(handle_->host, handle_->port, "set " + key, [&] { handle_->store->set(key, value); });
}

std::string Store::get(const std::string& key, std::chrono::milliseconds timeout,
                       const std::function<void()>& check) {
  constexpr std::chrono::milliseconds kSlice = 1s;
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const bool last = left <= kSlice;
    const auto value =
        reaching(handle_->host, handle_->port, "wait for " + key, [&]() -> std::optional<std::string> {
          try {
            handle_->store->wait({key}, std::max(1ms, last ? left : kSlice));
          } catch (const c10::DistStoreError&) {  // the time is over; a lost connection is another error
            if (last) throw;
            return std::nullopt;
          }
          try {
            return handle_->store->get_to_str(key);
          } catch (const ForgedValue&) {
            if (last) throw;
            std::this_thread::sleep_for(20ms);  // who should write it will
            return std::nullopt;
          }
        });
    if (value) return *value;
    if (check) check();
  }
}

std::optional<std::string> Store::try_get(const std::string& key) {
  return reaching(handle_->host, handle_->port, "look for " + key, [&]() -> std::optional<std::string> {
    if (!handle_->store->check({key})) return std::nullopt;
    try {
      return handle_->store->get_to_str(key);
    } catch (const ForgedValue&) {
      return std::nullopt;
    }
  });
}

bool Store::has(const std::string& key) {
  return reaching(handle_->host, handle_->port, "look for " + key,
                  [&] { return handle_->store->check({key}); });
}

int64_t Store::add(const std::string& key, int64_t amount) {
  return reaching(handle_->host, handle_->port, "add to " + key,
                  [&] { return handle_->store->add(key, amount); });
}

void Store::erase(const std::string& key) {
  reaching(handle_->host, handle_->port, "erase " + key, [&] { handle_->store->deleteKey(key); });
}

c10d::Store& Store::implementation() const { return *handle_->store; }

}  // namespace pipewright
