#include "runtime/side_by_side/meetings.h"

#include "graph/random.h"

namespace pipewright {
namespace {

std::vector<int64_t> every_other(int64_t first, int64_t pipelines) {
  std::vector<int64_t> chosen;
  for (int64_t p = first; p < pipelines; p += 2) chosen.push_back(p);
  return chosen;
}

}  // namespace

std::vector<int64_t> MeetingPartners::active() const { return every_other(0, pipelines); }
std::vector<int64_t> MeetingPartners::passive() const { return every_other(1, pipelines); }

int64_t MeetingPartners::drawn(int64_t pipeline, int64_t span, int64_t updates) const {
  constexpr uint64_t kMeetings = 0x6d656574;  // "meet": no other draw of the run begins so
  KeyedRandom random({kMeetings, seed, static_cast<uint64_t>(stage), static_cast<uint64_t>(pipeline),
                      static_cast<uint64_t>(span), static_cast<uint64_t>(updates)});
  const std::vector<int64_t> all = passive();
  return all[random.below(all.size())];
}

}  // namespace pipewright
