// What the hosts of a job have of its kept states (kept_state.h) when ranks start anew, and which of the
// states is the newest that can be put together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/json.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/kept_state.h"

namespace pipewright {

/// A checkpoint on one host: whole, or what came into it until its ranks were killed.
struct KeptPart {
  int64_t attempt = 0;
  int64_t minibatch = 0;
  std::string manifest;               ///< its text; "" where the host has not heard that it was whole
  std::vector<CheckpointFile> files;  ///< with the digests of their bytes as they are
  std::filesystem::path folder;       ///< on that host
};

struct HostInventory {
  std::vector<KeptPart> parts;

  /// A file with just these bytes; null: the host has none.
  const KeptPart* find(const CheckpointFile& file) const;
  std::string to_text() const;
  static HostInventory from_text(const std::string& text);  ///< PeerError for anything else
};

/// Reads every byte that this host keeps. What cannot be read is left out.
HostInventory inventory_of(const std::filesystem::path& place);

/// A state from which all hosts go on, and where its files are.
struct KeptChoice {
  int64_t minibatch = 0;
  std::string manifest;  ///< its text
  std::vector<CheckpointFile> files;
  std::map<std::string, std::vector<int64_t>> hosts_having;  ///< by file: hosts, ascending; some of each

  bool has(int64_t host, const std::string& file) const;
  bool lacks_any(int64_t host) const;
  /// The host that gives a file to one that lacks it: hosts that have it take turns.
  int64_t source_for(int64_t host, const std::string& file) const;
};

/// The state of this manifest; nothing if a file of it lies on none of the hosts, byte for byte as the
/// manifest says, or if this is damaged.
std::optional<KeptChoice> choice_of(const std::string& manifest, const std::vector<HostInventory>& hosts);
/// The newest state of this past (is_of_this_past()) of which some host has the manifest and that is a
/// choice_of() it. Of what the same is given, the same comes out.
std::optional<KeptChoice> newest_whole(const std::vector<HostInventory>& hosts,
                                       const std::vector<AttemptStart>& starts);

/// Of a job that ends before its end: what is kept, if it is newer than all checkpoints of the run folder,
/// becomes one of these, put together from what the hosts have; they copy it into the run folder where they
/// can be asked (OnHost). Its folder, or "" where there is nothing newer, or a file of it has gone with its
/// host. RunError if it cannot be written.
std::filesystem::path save_kept_state(const std::filesystem::path& run_folder, const OnHost& on_host);

}  // namespace pipewright
