#include "runtime/messages/checkpoint_stage.h"

#include <utility>

#include "graph/limits.h"

namespace pipewright {
namespace {

CheckpointFile read_file_entry(JsonReader& entry) {
  CheckpointFile file;
  file.file = entry.string("file");
  file.bytes = entry.integer("bytes", 0, kMostBytes);
  file.digest = entry.string("digest");
  return file;
}

// Optional key: an array of files, each with a number.
std::map<int64_t, CheckpointFile> read_numbered(JsonReader& reader, const char* key, const char* number) {
  std::map<int64_t, CheckpointFile> files;
  if (!reader.has(key)) return files;
  for (JsonReader& entry : reader.objects(key)) {
    const int64_t n = entry.integer(number, 0, kMostCount);
    files[n] = read_file_entry(entry);
    entry.finish();
  }
  return files;
}

void write_file_entry(Json& json, const CheckpointFile& file) {
  json["file"] = file.file;
  json["bytes"] = file.bytes;
  json["digest"] = file.digest;
}

void write_numbered(Json& json, const char* key, const char* number,
                    const std::map<int64_t, CheckpointFile>& files) {
  for (const auto& [n, file] : files) {
    Json entry{{number, n}};
    write_file_entry(entry, file);
    json[key].push_back(std::move(entry));
  }
}

}  // namespace

CheckpointStage CheckpointStage::from_json(JsonReader& reader) {
  CheckpointStage stage;
  stage.state = read_file_entry(reader);
  stage.updates = reader.integer("updates", 0, kMostCount);
  stage.versions = read_numbered(reader, "versions", "number");
  stage.replicas = read_numbered(reader, "replicas", "replica");
  return stage;
}

Json CheckpointStage::to_json() const {
  Json json;
  write_file_entry(json, state);
  json["updates"] = updates;
  write_numbered(json, "versions", "number", versions);
  write_numbered(json, "replicas", "replica", replicas);
  return json;
}

std::vector<CheckpointFile> CheckpointStage::files() const {
  std::vector<CheckpointFile> files;
  if (!state.file.empty()) files.push_back(state);  // a further replica writes none
  for (const auto& [number, file] : versions) files.push_back(file);
  for (const auto& [replica, file] : replicas) files.push_back(file);
  return files;
}

void CheckpointStage::add(CheckpointStage part) {
  if (!part.state.file.empty()) state = std::move(part.state);
  updates = part.updates;  // equal on all replicas
  versions.merge(part.versions);
  replicas.merge(part.replicas);
}

}  // namespace pipewright
