#include "runtime/transport/device_path.h"

#include <algorithm>
#include <map>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/transport_rules.h"

namespace pipewright {
namespace {

// From here on NCCL lets ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1).
constexpr int64_t kSharingNccl = 23'003;

std::string version_text(int64_t version) {
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// "ranks 0 and 2 share a GPU (NVIDIA H100)", or "".
std::string sharing_ranks(const std::vector<RankDevice>& ranks) {
  std::map<std::string, size_t> owners;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto [owner, is_first] = owners.insert({ranks[rank].identity, rank});
    if (!is_first) {
      return "ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) + " share a GPU (" +
             ranks[rank].name + ")";
    }
  }
  return "";
}

}  // namespace

std::string RankDevice::to_text() const {
  return Json({{"gpu", is_gpu}, {"identity", identity}, {"name", name}, {"nccl", nccl_version}}).dump();
}

RankDevice RankDevice::from_text(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    return {json.at("gpu").get<bool>(), json.at("identity").get<std::string>(),
            json.at("name").get<std::string>(), json.at("nccl").get<int64_t>()};
  } catch (const Json::exception&) {
    throw PeerError("a rank says of its device: '" + text + "'",
                    "give every rank the same version of Pipewright");
  }
}

DevicePath choose_device_path(const std::string& transport, const std::vector<RankDevice>& ranks) {
  const auto without =
      std::find_if(ranks.begin(), ranks.end(), [](const RankDevice& r) { return !r.is_gpu; });
  const TransportFacts& facts = transport_facts(transport);
  const bool nccl = facts.needs_gpus();
  if (std::none_of(ranks.begin(), ranks.end(), [](const RankDevice& r) { return r.is_gpu; })) {
    if (nccl) {
      throw InputError("transport 'nccl': no rank has a GPU", "give --device cuda, or --transport auto");
    }
    return DevicePath::kNone;
  }
  if (without != ranks.end()) {
    if (nccl) {
      throw InputError("transport 'nccl': rank " + std::to_string(without - ranks.begin()) + " has no GPU",
                       "give --transport auto: messages then go through the host's memory");
    }
    return DevicePath::kStaged;
  }
  int64_t version = ranks[0].nccl_version;
  for (const RankDevice& rank : ranks) version = std::min(version, rank.nccl_version);
  const std::string sharing = sharing_ranks(ranks);
  if (nccl) {
    if (version == 0)
      throw InputError("transport 'nccl': NCCL does not know these devices", "give --transport auto");
    if (!sharing.empty() && version < kSharingNccl) {
      throw InputError(
          "transport 'nccl': " + sharing + ", which NCCL " + version_text(version) +
              " refuses (2.30.3 and later can)",
          "give --transport auto, shm or gloo: messages then go through the host's memory; or a GPU "
          "for each rank");
    }
    return DevicePath::kNccl;
  }
  const bool nccl_serves = sharing.empty() && version > 0;
  return facts.device_way == DeviceWay::kFastest && nccl_serves ? DevicePath::kNccl : DevicePath::kStaged;
}

}  // namespace pipewright
