#include "graph/verified.h"

#include "graph/document.h"
#include "graph/limits.h"
#include "graph/regular_file.h"

namespace pipewright {

Verified Verified::from_json(JsonReader& reader) {
  Verified verified;
  verified.first_minibatch = reader.integer("first_minibatch", 0, kMostCount);
  verified.minibatches = reader.integer("minibatches", 0, kMostCount);
  verified.tensors = reader.integer("tensors", 0, kMostCount);
  verified.program = reader.string("program");
  verified.command = reader.string("command");
  if (reader.has("difference")) verified.difference = reader.string("difference");
  return verified;
}

Json Verified::to_json() const {
  Json json = {{"first_minibatch", first_minibatch},
               {"minibatches", minibatches},
               {"tensors", tensors},
               {"program", program},
               {"command", command}};
  if (!difference.empty()) json["difference"] = difference;
  return json;
}

void Verified::validate(const std::string& where) const {
  if (minibatches == 0) fail_document(where, "minibatches", "got 0, expected at least 1");
}

std::optional<Verified> read_verified(const std::filesystem::path& folder) {
  if (!file_exists(folder / kVerifiedName)) return std::nullopt;
  return read_document<Verified>(folder / kVerifiedName);
}

}  // namespace pipewright
