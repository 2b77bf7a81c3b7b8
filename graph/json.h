// Strict reading of JSON documents, and writing that is stable to the byte.
//
// A reader asks for every key it knows and then calls `finish()`: a missing key, an unknown key, a wrong
// type, a value out of range or a number that is not finite is an InputError that names the file and the path
// to the place
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
  /// `where` is the document's name in messages (usually its file); `path` the place of `json` in it ("" at
  /// the top).
  JsonReader(const Json& json, std::string where, std::string path = "");

  /// Optional: all keys that the object may have. Lets the message for a missing key name a misspelt one that
  /// is there, instead of one that merely has not been asked for yet.
  void expect(std::vector<std::string> keys);

  bool has(const std::string& key);  ///< true if present; marks the key as known
  const Json& raw(const std::string& key);
  std::string string(const std::string& key);
  std::string string_one_of(const std::string& key, const std::vector<std::string>& allowed);
  bool boolean(const std::string& key);
  int64_t integer(const std::string& key, int64_t minimum, int64_t maximum);
  double number(const std::string& key, double minimum, double maximum);
  double number_or_null(const std::string& key, double minimum, double maximum);  ///< NaN for null
  std::vector<std::string> strings(const std::string& key);
  std::vector<int64_t> integers(const std::string& key, int64_t minimum, int64_t maximum);
  JsonReader object(const std::string& key);
  std::vector<JsonReader> objects(const std::string& key);  ///< an array of objects
  std::vector<std::pair<std::string, JsonReader>> entries(
      const std::string& key);  ///< an object of objects, in order
  std::vector<std::pair<std::string, std::string>> string_entries(
      const std::string& key);  ///< an object of strings

  /// InputError if the object holds a key that nobody asked for.
  void finish() const;
  /// InputError at `key` of this object ("" = the object itself): for rules that span several keys.
  [[noreturn]] void fail(const std::string& key, const std::string& message,
                         const std::string& remedy = "") const;
  const std::string& where() const { return where_; }
  std::string place(const std::string& key) const;  ///< path of `key` in the document, for messages

 private:
  const Json& get(const std::string& key);

  const Json& json_;
  std::string where_;
  std::string path_;
  std::vector<std::string> known_;     ///< asked for
  std::vector<std::string> expected_;  ///< as `expect` says
};

/// The path of an entry of a list: `stages[2]`.
std::string list_element(const std::string& path, size_t index);
/// For rules outside a reader: `where: path: message`, or `where: message` for an empty path.
[[noreturn]] void fail_document(const std::string& where, const std::string& path, const std::string& message,
                                const std::string& remedy = "");
/// Rules for numbers that were set in code or on the command line; same messages as the reader's.
void check_range(const std::string& where, const std::string& path, int64_t value, int64_t minimum,
                 int64_t maximum);
void check_range(const std::string& where, const std::string& path, double value, double minimum,
                 double maximum);

/// For messages: in quotes, on one line, cut when long.
std::string in_quotes(const std::string& text);
/// For messages, after "got": "an object", "null", "3.5", "the string \"x\"".
std::string described(const Json& json);
std::string join(const std::vector<std::string>& words, const std::string& separator);
/// The finite number, or null: for what may be unknown. JSON has no NaN.
Json finite_or_null(double value);
/// Back from there: NaN for null. `json` is a number or null.
double number_or_nan(const Json& json);

/// InputError with line and column if `text` is not JSON. Duplicate keys, nesting deeper than 64 and texts of
/// more than a GiB are errors too.
Json parse_json(const std::string& text, const std::string& where);
Json read_json_file(const std::filesystem::path& file);
/// Two-space indent, final newline. Arrays of plain values are on one line; so are objects that hold only
/// plain values and such arrays, if they fit in 120 columns. CheckError for a number that is not finite.
std::string json_text(const Json& json);

/// The file's bytes; InputError when it cannot be read: no such file (the nearest name in the folder is
/// said), a folder, no right.
std::string read_file(const std::filesystem::path& file);
/// Written beside and renamed: a reader sees the old or the new file, never half of one. Links are followed;
/// a device or pipe (/dev/stdout) is written to as it is. Makes no folders. RunError (no folder, no right,
/// disk full).
void write_file(const std::filesystem::path& file, const std::string& bytes);

/// "xxh128:" and 32 hex digits of the bytes.
std::string digest_of(const std::string& bytes);

}  // namespace pipewright
