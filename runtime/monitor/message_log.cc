#include "runtime/monitor/message_log.h"

#include <unistd.h>

#include <cmath>
#include <fstream>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/random.h"

namespace pipewright {
namespace {

constexpr const char* kBegin = R"({"kind":"messages")";
constexpr double kMicro = 1e-6;
constexpr int64_t kMostStep = int64_t{1} << 20;

int64_t microseconds(double seconds) { return std::llround(seconds / kMicro); }

}  // namespace

std::string MessageLog::to_line() const {
  Json all = Json::array();
  for (const MessageEnd& end : ends)
    all.push_back({static_cast<int>(end.is_gradient), static_cast<int>(end.is_sender), end.sender_stage,
                   end.minibatch, microseconds(end.began_seconds),
                   microseconds(end.ended_seconds - end.began_seconds)});
  Json json;
  json["generation"] = generation;
  json["clock"] = clock;
  json["ends"] = std::move(all);
  std::string line = kBegin;
  line += ',';
  line.append(json.dump(), 1);
  return line;
}

bool MessageLog::is_line(const std::string& line) { return line.rfind(kBegin, 0) == 0; }

MessageLog MessageLog::from_line(const std::string& line) {
  const Json json = parse_json(line, "line of a rank");
  MessageLog log;
  log.generation = json.at("generation").get<int64_t>();
  log.clock = json.at("clock").get<std::string>();
  for (const Json& end : json.at("ends")) {
    const double began = static_cast<double>(end.at(4).get<int64_t>()) * kMicro;
    const double lasted = static_cast<double>(end.at(5).get<int64_t>()) * kMicro;
    log.ends.push_back({end.at(0).get<int>() != 0, end.at(1).get<int>() != 0, end.at(2).get<int64_t>(),
                        end.at(3).get<int64_t>(), began, began + lasted});
  }
  return log;
}

std::string clock_of_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string name;
  if (std::getline(file, name) && !name.empty()) return name;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return host;
}

MessageEnd message_end(const Action& action, int64_t first_stage) {
  PW_CHECK(is_of_message(action.kind), to_text(action) << " is no message");
  MessageEnd end;
  end.is_gradient = action.kind == ActionKind::kSendGradient || action.kind == ActionKind::kReceiveGradient;
  end.is_sender = action.kind == ActionKind::kSendGradient || action.kind == ActionKind::kSendActivation;
  const int64_t stage = action.stage_or(first_stage);
  end.sender_stage = end.is_sender ? stage : stage + (end.is_gradient ? 1 : -1);
  end.minibatch = action.index;
  return end;
}

// Unrelated to the turns of replicas, which would see other minibatches than their neighbours.
bool MessageSampler::takes(int64_t minibatch) const {
  if (step_ == 1) return true;
  const uint64_t drawn = KeyedRandom({static_cast<uint64_t>(minibatch)}).next();
  return (drawn & (static_cast<uint64_t>(step_) - 1)) == 0;
}

void MessageSampler::adjust(int64_t messages, double seconds) {
  if (messages == 0) return;
  const double apart = seconds / static_cast<double>(messages);
  step_ = 1;
  while (apart * static_cast<double>(step_) < kSampleSeconds && step_ < kMostStep) step_ *= 2;
}

}  // namespace pipewright
