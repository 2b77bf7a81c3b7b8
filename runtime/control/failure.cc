#include "runtime/control/failure.h"

#include "graph/json.h"

namespace pipewright {
namespace {

constexpr const char* kKey = "failure";
constexpr const char* kLock = "failure/lock";

}  // namespace

std::string Failure::to_text() const {
  Json json;
  json["rank"] = rank;
  json["code"] = static_cast<int>(code);
  json["message"] = message;
  json["remedy"] = remedy;
  if (lost) json["lost"] = *lost;
  return json.dump();
}

Failure Failure::from_text(const std::string& text) {
  const Json json = parse_json(text, "failure");
  const auto lost = json.contains("lost") ? std::optional(json["lost"].get<int64_t>()) : std::nullopt;
  return {json.at("rank").get<int64_t>(), static_cast<ExitCode>(json.at("code").get<int>()),
          json.at("message").get<std::string>(), json.at("remedy").get<std::string>(), lost};
}

bool announce_failure(Store& store, const Failure& failure) {
  if (store.add(kLock, 1) != 1) return false;
  store.set(kKey, failure.to_text());
  return true;
}

Failure await_failure(Store& store, std::chrono::milliseconds timeout) {
  return Failure::from_text(store.get(kKey, timeout));
}

std::optional<Failure> announced_failure(Store& store) {
  const auto text = store.try_get(kKey);
  if (!text) return std::nullopt;
  return Failure::from_text(*text);
}

}  // namespace pipewright
