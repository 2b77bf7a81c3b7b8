// The meeting place of a job's ranks: a small key-value store over TCP (c10d's TCPStore behind it).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace c10d {
class Store;
}

namespace pipewright {

/// Methods throw PeerError when the store cannot be reached or a wait outlasts its bound; RunError where that
/// is for want of a descriptor in this process. One thread at a time uses a Store; another thread takes a
/// clone().
class Store {
 public:
  /// Serves the store from this process on `port` (0: a free one, see port()) for as long as the object
  /// lives, at the address that `host` means (bind_socket). `name` keeps jobs apart. With a `secret` only who
  /// knows it can write values: what others write is as if it were not there (SignedStore).
  static Store serve(int64_t port, const std::string& name = "", const std::string& secret = "",
                     const std::string& host = "127.0.0.1");
  /// Joins a store; waits up to `timeout` for it to come up, whoever else answers there until then, and as
  /// long for a clone() to connect. `found`, if given, hears what was there instead at each try ("it answers
  /// 'HTTP/1.0 400 Bad request'"). InputError if the store's secret is another one.
  static Store join(const std::string& host, int64_t port, std::chrono::milliseconds timeout,
                    const std::string& name = "", const std::string& secret = "",
                    const std::function<void(const std::string&)>& found = {});

  ~Store();
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  Store clone() const;

  int64_t port() const;
  std::string address() const;  ///< "HOST:PORT"
  void set(const std::string& key, const std::string& value);
  /// Waits until the key is there. `check`, if given, is called about once a second meanwhile, and may throw.
  std::string get(const std::string& key, std::chrono::milliseconds timeout,
                  const std::function<void()>& check = {});
  /// The value, or nothing if the key is not there now.
  std::optional<std::string> try_get(const std::string& key);
  bool has(const std::string& key);
  /// Adds to a counter and returns the sum; a counter that is not there is 0.
  int64_t add(const std::string& key, int64_t amount);
  void erase(const std::string& key);

  /// For transports.
  c10d::Store& implementation() const;

 private:
  struct Handle;
  explicit Store(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

}  // namespace pipewright
