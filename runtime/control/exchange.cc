#include "runtime/control/exchange.h"

namespace pipewright {
namespace {

const char* name_of(Topic topic) {
  switch (topic) {
    case Topic::kFingerprint:
      return "fingerprint";
    case Topic::kHost:
      return "host";
    case Topic::kProbeFacts:
      return "probe/facts";
    case Topic::kGroupServer:
      return "groups/server";
    case Topic::kCache:
      return "cache/address";
    case Topic::kKeptInventory:
      return "kept/inventory";
    case Topic::kKeptChoice:
      return "kept/choice";
    case Topic::kKeptReady:
      return "kept/ready";
  }
  return "";
}

std::string key_of(Topic topic, int64_t rank) {
  return std::string("said/") + name_of(topic) + "/" + std::to_string(rank);
}

}  // namespace

void Exchange::say(Topic topic, const std::string& text) { store_.set(key_of(topic, rank()), text); }

std::string Exchange::said_by(int64_t rank, Topic topic) {
  return store_.get(key_of(topic, rank), settings_.patience, settings_.check);
}

std::vector<std::string> Exchange::said_by_all(Topic topic) {
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < settings_.world_size; ++rank) texts.push_back(said_by(rank, topic));
  return texts;
}

}  // namespace pipewright
