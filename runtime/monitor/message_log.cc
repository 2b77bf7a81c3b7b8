#include "runtime/monitor/message_log.h"

#include <unistd.h>

#include <fstream>

#include "graph/error.h"
#include "graph/random.h"

namespace pipewright {
namespace {

constexpr int64_t kMostStep = int64_t{1} << 20;

}  // namespace

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
