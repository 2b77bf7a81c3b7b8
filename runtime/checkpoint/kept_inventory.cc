#include "runtime/checkpoint/kept_inventory.h"

#include <algorithm>

#include "graph/atomic_file.h"
#include "graph/digest.h"
#include "graph/error.h"
#include "graph/regular_file.h"
#include "runtime/checkpoint/checkpoint_keeper.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

// What lies in a checkpoint's folder; `is_whole`: as its name says.
KeptPart part_in(const fs::path& folder, int64_t attempt, int64_t minibatch, bool is_whole) {
  KeptPart part{attempt, minibatch, "", {}, folder};
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    try {
      if (name == kManifestName) {
        if (is_whole) part.manifest = read_regular_file(it->path());
      } else if (it->path().extension() == ".safetensors") {
        part.files.push_back({name, static_cast<int64_t>(it->file_size()), digest_of_file(it->path())});
      }
    } catch (const std::exception&) {
      // As if it were not there.
    }
  }
  std::sort(part.files.begin(), part.files.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) { return a.file < b.file; });
  return part;
}

std::optional<CheckpointManifest> manifest_of(const std::string& text) {
  try {
    const Json json = parse_json(text, kManifestName);
    JsonReader reader(json, kManifestName);
    auto manifest = CheckpointManifest::from_json(reader);
    manifest.validate(kManifestName);
    return manifest;
  } catch (const Error&) {
    return std::nullopt;  // damaged
  }
}

}  // namespace

const KeptPart* HostInventory::find(const CheckpointFile& file) const {
  for (const KeptPart& part : parts) {
    for (const CheckpointFile& own : part.files)
      if (own.file == file.file && own.bytes == file.bytes && own.digest == file.digest) return &part;
  }
  return nullptr;
}

std::string HostInventory::to_text() const {
  Json json = Json::array();
  for (const KeptPart& part : parts) {
    Json files = Json::array();
    for (const CheckpointFile& file : part.files)
      files.push_back({{"file", file.file}, {"bytes", file.bytes}, {"digest", file.digest}});
    json.push_back({{"attempt", part.attempt},
                    {"minibatch", part.minibatch},
                    {"manifest", part.manifest},
                    {"files", std::move(files)},
                    {"folder", part.folder.string()}});
  }
  return json.dump();
}

HostInventory HostInventory::from_text(const std::string& text) {
  HostInventory inventory;
  try {
    for (const Json& json : Json::parse(text)) {
      KeptPart part;
      part.attempt = json.at("attempt").get<int64_t>();
      part.minibatch = json.at("minibatch").get<int64_t>();
      part.manifest = json.at("manifest").get<std::string>();
      for (const Json& file : json.at("files"))
        part.files.push_back({file.at("file").get<std::string>(), file.at("bytes").get<int64_t>(),
                              file.at("digest").get<std::string>()});
      part.folder = json.at("folder").get<std::string>();
      inventory.parts.push_back(std::move(part));
    }
  } catch (const Json::exception&) {
    throw PeerError("a host's list of what it keeps cannot be read", "do all ranks run the same version?");
  }
  return inventory;
}

HostInventory inventory_of(const fs::path& place) {
  HostInventory inventory;
  for (const KeptAttempt& attempt : list_kept_attempts(place)) {
    std::error_code error;
    for (fs::directory_iterator it(checkpoints_of(attempt.folder), error), end; !error && it != end;
         it.increment(error)) {
      if (const auto whole = minibatch_of(it->path())) {
        inventory.parts.push_back(part_in(it->path(), attempt.attempt, *whole, true));
      } else if (const auto partial = minibatch_of_partial(it->path())) {
        inventory.parts.push_back(part_in(it->path(), attempt.attempt, *partial, false));
      }
    }
  }
  std::sort(inventory.parts.begin(), inventory.parts.end(), [](const KeptPart& a, const KeptPart& b) {
    return std::pair(a.minibatch, a.attempt) > std::pair(b.minibatch, b.attempt);
  });
  return inventory;
}

bool KeptChoice::has(int64_t host, const std::string& file) const {
  const auto& having = hosts_having.at(file);
  return std::binary_search(having.begin(), having.end(), host);
}

bool KeptChoice::lacks_any(int64_t host) const {
  return std::any_of(files.begin(), files.end(),
                     [&](const CheckpointFile& file) { return !has(host, file.file); });
}

int64_t KeptChoice::source_for(int64_t host, const std::string& file) const {
  const auto& having = hosts_having.at(file);
  const auto place = std::find_if(files.begin(), files.end(),
                                  [&](const CheckpointFile& other) { return other.file == file; }) -
                     files.begin();
  return having[static_cast<size_t>(place + host) % having.size()];
}

std::optional<KeptChoice> choice_of(const std::string& text, const std::vector<HostInventory>& hosts) {
  const auto manifest = manifest_of(text);
  if (!manifest) return std::nullopt;
  KeptChoice choice{manifest->next_minibatch, text, manifest->files(), {}};
  for (const CheckpointFile& file : choice.files) {
    auto& having = choice.hosts_having[file.file];
    for (size_t host = 0; host < hosts.size(); ++host)
      if (hosts[host].find(file)) having.push_back(static_cast<int64_t>(host));
    if (having.empty()) return std::nullopt;
  }
  return choice;
}

std::optional<KeptChoice> newest_whole(const std::vector<HostInventory>& hosts,
                                       const std::vector<AttemptStart>& starts) {
  std::optional<KeptChoice> newest;
  for (const HostInventory& host : hosts) {
    for (const KeptPart& part : host.parts) {
      if (part.manifest.empty() || !is_of_this_past(part.attempt, part.minibatch, starts)) continue;
      if (newest && part.minibatch <= newest->minibatch) continue;
      if (auto choice = choice_of(part.manifest, hosts)) newest = std::move(choice);
    }
  }
  return newest;
}

namespace {

// The places of all hosts, brought into `home` where they lie in another host's memory.
std::vector<HostInventory> inventories_at(const fs::path& run_folder, const fs::path& home,
                                          const OnHost& on_host) {
  std::vector<HostInventory> all;
  for (const HostOfKeptState& host : hosts_of_kept_state(run_folder)) {
    const fs::path target = target_of_kept_place(host.place), copy = fs::absolute(home / host.host);
    const bool copied = on_host && !target.empty() && on_host(host.host, {"cp", "-r", target, copy});
    all.push_back(inventory_of(copied ? copy : host.place));
  }
  return all;
}

}  // namespace

fs::path save_kept_state(const fs::path& run_folder, const OnHost& on_host) {
  const fs::path home = run_folder / ".kept.home";
  std::error_code ignored;
  fs::path folder;
  try {
    if (on_host) fs::create_directory(home);
    const auto hosts = inventories_at(run_folder, home, on_host);
    const auto newest = newest_whole(hosts, read_starts(run_folder));
    const auto written = list_checkpoints(run_folder);
    if (newest && (written.empty() || minibatch_of(written.front()).value_or(0) < newest->minibatch)) {
      const fs::path partial = partial_checkpoint(run_folder, newest->minibatch);
      fs::create_directories(partial);
      for (const CheckpointFile& file : newest->files) {
        const HostInventory& host = hosts[static_cast<size_t>(newest->hosts_having.at(file.file).front())];
        fs::copy_file(host.find(file)->folder / file.file, partial / file.file,
                      fs::copy_options::overwrite_existing);
      }
      write_file(partial / kManifestName, newest->manifest);
      folder = checkpoints_of(run_folder) / checkpoint_name(newest->minibatch);
      fs::rename(partial, folder);
    }
  } catch (const fs::filesystem_error& error) {
    throw RunError(run_folder.string() +
                   ": what was kept in memory cannot be written there: " + error.code().message());
  }
  fs::remove_all(home, ignored);
  return folder;
}

}  // namespace pipewright
