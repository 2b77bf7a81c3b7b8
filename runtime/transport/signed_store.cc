#include "runtime/transport/signed_store.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <array>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr size_t kCodeBytes = 32;

}  // namespace

std::vector<uint8_t> SignedStore::code_of(const std::string& key, const uint8_t* value, size_t size) const {
  // The key's length in front: no other key and value make the same bytes.
  std::string bytes = std::to_string(key.size()) + ":" + key;
  bytes.append(reinterpret_cast<const char*>(value), size);
  std::vector<uint8_t> code(kCodeBytes);
  unsigned int length = 0;
  const auto* made =
      HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
           reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), code.data(), &length);
  PW_CHECK(made != nullptr && length == kCodeBytes, "HMAC-SHA256 of " << bytes.size() << " bytes");
  return code;
}

void SignedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  std::vector<uint8_t> with_code = value;
  const std::vector<uint8_t> code = code_of(key, value.data(), value.size());
  with_code.insert(with_code.end(), code.begin(), code.end());
  inner_->set(key, with_code);
}

std::vector<uint8_t> SignedStore::get(const std::string& key) {
  std::vector<uint8_t> value = inner_->get(key);
  if (value.size() >= kCodeBytes) {
    const size_t size = value.size() - kCodeBytes;
    const std::vector<uint8_t> code = code_of(key, value.data(), size);
    if (CRYPTO_memcmp(code.data(), value.data() + size, kCodeBytes) == 0) {
      value.resize(size);
      return value;
    }
  }
  throw ForgedValue("'" + key + "' was written by somebody who does not know the job's secret");
}

std::string new_secret() {
  std::array<uint8_t, 32> bytes{};
  PW_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "getrandom");
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

}  // namespace pipewright
