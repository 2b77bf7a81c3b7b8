// Exported programs that differ from those of tests/models/pt2 in one thing.
#pragma once

#include <caffe2/serialize/inline_container.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "graph/json.h"
#include "test_paths.h"

namespace pipewright::testing {

inline std::string pt2_fixture(const std::string& name) {
  const std::filesystem::path folder = PIPEWRIGHT_SOURCE_DIR "/tests/models/pt2";
  return (folder / (name + ".pt2")).string();
}

/// Bytes by record.
using Records = std::map<std::string, std::string>;

inline Records records_of(const std::filesystem::path& file) {
  caffe2::serialize::PyTorchStreamReader reader(file.string());
  Records records;
  for (const std::string& name : reader.getAllRecords()) {
    const auto [bytes, size] = reader.getRecord(name);
    records[name] = std::string(static_cast<const char*>(bytes.get()), size);
  }
  return records;
}

inline void write_records(const Records& records, const std::filesystem::path& file) {
  caffe2::serialize::PyTorchStreamWriter writer(file.string());
  for (const auto& [name, bytes] : records) {
    if (name.starts_with(".data/") || name == "version") continue;  // the writer makes its own
    writer.writeRecord(name, bytes.data(), bytes.size());
  }
  writer.writeEndOfFile();
}

/// The fixture after `edit` changed its records.
inline std::filesystem::path edited(const std::string& name, const std::filesystem::path& folder,
                                    const std::function<void(Records&)>& edit) {
  Records records = records_of(pt2_fixture(name));
  edit(records);
  const std::filesystem::path file = folder / (name + ".pt2");
  write_records(records, file);
  return file;
}

/// The fixture after `edit` changed one of its JSON records.
inline std::filesystem::path edited_json(const std::string& name, const std::filesystem::path& folder,
                                         const std::string& record, const std::function<void(Json&)>& edit) {
  return edited(name, folder, [&](Records& records) {
    Json json = parse_json(records.at(record), record);
    edit(json);
    records[record] = json.dump();
  });
}

}  // namespace pipewright::testing
