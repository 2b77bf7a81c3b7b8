#include "runtime/control/failure.h"

#include "graph/json.h"

namespace pipewright {

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

}  // namespace pipewright
