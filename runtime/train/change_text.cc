#include "runtime/train/change_text.h"

#include "graph/document.h"

namespace pipewright {

std::string text_of(const PlannedChange& change) {
  Json json;
  json["minibatch"] = change.minibatch;
  json["file"] = change.file;
  json["reason"] = change.reason;
  json["plan"] = document_text(change.plan);
  if (change.freeze) json["freeze"] = *change.freeze;
  if (change.gradient_accumulation) json["gradient_accumulation"] = *change.gradient_accumulation;
  if (change.learning_rate_scale) json["learning_rate_scale"] = *change.learning_rate_scale;
  // A file's name may be any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

PlannedChange change_from(const std::string& text) {
  const Json decided = parse_json(text, "change of the plan");
  PlannedChange change;
  change.minibatch = decided.at("minibatch");
  change.file = decided.at("file");
  change.reason = decided.at("reason");
  change.plan = parse_document<Plan>(decided.at("plan").get<std::string>(), change.file);
  if (decided.contains("freeze")) change.freeze = decided.at("freeze").get<int64_t>();
  if (decided.contains("gradient_accumulation"))
    change.gradient_accumulation = decided.at("gradient_accumulation").get<int64_t>();
  if (decided.contains("learning_rate_scale"))
    change.learning_rate_scale = decided.at("learning_rate_scale").get<double>();
  return change;
}

}  // namespace pipewright
