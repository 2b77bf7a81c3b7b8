// A store whose values only those can write who know the job's secret.
#pragma once

#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace pipewright {

/// The value of a key was not written by somebody who knows the secret.
class ForgedValue : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Values carry a code (HMAC-SHA256) of key and value that get() demands; ForgedValue otherwise. What c10d's
/// server lets anyone do remains: to read, to delete, to count up, to overwrite (which is noticed).
class SignedStore : public c10d::Store {
 public:
  SignedStore(c10::intrusive_ptr<c10d::Store> inner, std::string secret)
      : inner_(std::move(inner)), secret_(std::move(secret)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<SignedStore>(inner_->clone(), secret_);
  }
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override { return inner_->add(key, value); }
  bool deleteKey(const std::string& key) override { return inner_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return inner_->check(keys); }
  int64_t getNumKeys() override { return inner_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { inner_->wait(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    inner_->wait(keys, timeout);
  }
  const std::chrono::milliseconds& getTimeout() const noexcept override { return inner_->getTimeout(); }
  void setTimeout(const std::chrono::milliseconds& timeout) override { inner_->setTimeout(timeout); }

 private:
  std::vector<uint8_t> code_of(const std::string& key, const uint8_t* value, size_t size) const;

  c10::intrusive_ptr<c10d::Store> inner_;
  std::string secret_;
};

/// 32 bytes of the system's randomness, as 64 hexadecimal digits.
std::string new_secret();

}  // namespace pipewright
