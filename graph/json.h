// Strict reading of JSON documents, and writing that is stable to the byte.
//
// A reader asks for every key it knows and then calls `finish()`: a missing key, an unknown key, a wrong type, a value
// out of range or a number that is not finite is an InputError that names the file and the path to the place
// (`gpus=4.json: stages[2].in_flight: 0 is not in 1..1024`) and, for keys, the nearest known one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace pipewright {

/// Key order is kept, so that what is written is in the order of docs/formats.md.
using Json = nlohmann::ordered_json;

/// A cursor on one JSON object. Borrows the JSON: it must outlive the reader.
class JsonReader {
 public:
  /// `where` is the document's name in messages (usually its file); `path` the place of `json` in it ("" at the top).
  JsonReader(const Json& json, std::string where, std::string path = "");

  bool has(const std::string& key);  ///< true if present; marks the key as known
  const Json& raw(const std::string& key);
  std::string string(const std::string& key);
  std::string string_one_of(const std::string& key, const std::vector<std::string>& allowed);
  bool boolean(const std::string& key);
  int64_t integer(const std::string& key, int64_t minimum, int64_t maximum);
  double number(const std::string& key, double minimum, double maximum);
  std::vector<std::string> strings(const std::string& key);
  std::vector<int64_t> integers(const std::string& key, int64_t minimum, int64_t maximum);
  JsonReader object(const std::string& key);
  std::vector<JsonReader> objects(const std::string& key);                            ///< an array of objects
  std::vector<std::pair<std::string, JsonReader>> entries(const std::string& key);    ///< an object of objects, in order

  /// InputError if the object holds a key that nobody asked for.
  void finish() const;
  /// InputError at `key` of this object ("" = the object itself): for rules that span several keys.
  [[noreturn]] void fail(const std::string& key, const std::string& message, const std::string& remedy = "") const;
  const std::string& where() const { return where_; }

 private:
  const Json& get(const std::string& key);
  std::string place(const std::string& key) const;

  const Json& json_;
  std::string where_;
  std::string path_;
  std::vector<std::string> known_;
};

/// InputError with line and column if `text` is not JSON. Duplicate keys are an error too.
Json parse_json(const std::string& text, const std::string& where);
Json read_json_file(const std::filesystem::path& file);
/// Two-space indent, arrays of plain numbers and strings on one line, final newline.
std::string json_text(const Json& json);

/// The file's bytes; InputError when it cannot be read.
std::string read_file(const std::filesystem::path& file);
/// Written beside and renamed: a reader sees the old or the new file, never half of one. RunError (disk full, no right).
void write_file(const std::filesystem::path& file, const std::string& bytes);

/// "xxh128:" and 32 hex digits of the bytes.
std::string digest_of(const std::string& bytes);

}  // namespace pipewright
