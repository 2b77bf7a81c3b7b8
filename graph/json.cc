#include "graph/json.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

constexpr size_t kDeepest = 64;
constexpr size_t kLargestText = size_t{1} << 30;
constexpr size_t kMostValues =
    size_t{1} << 22;  // of a large model's graph: a tenth; each takes up to 200 bytes of memory
constexpr size_t kLineWidth = 120;

// A key as a step of a path: `.in_flight`, or `["features.0.weight"]` for what would be read as several
// steps.
std::string path_step(const std::string& path, const std::string& key) {
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  if (!plain) return path + "[" + in_quotes(key) + "]";
  return path.empty() ? key : path + "." + key;
}

std::string range_text(const std::string& value, const std::string& minimum, const std::string& maximum,
                       bool bounded_below, bool bounded_above, bool below) {
  if (bounded_below && bounded_above) return value + " is not in " + minimum + ".." + maximum;
  return below ? value + " is less than " + minimum : value + " is more than " + maximum;
}

// Builds the document and refuses what nlohmann's own builder would let pass: duplicate keys and endless
// nesting.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(const std::string& text, const std::string& where) : text_(text), where_(where) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override {
    refuse_nul(value);
    return put(std::move(value));
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    refuse_nul(name);
    if (!open_.back().keys.insert(name).second) {
      fail_document(where_, place(name), "the key is there twice", "Remove one of the two.");
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    const size_t end = std::min(position == 0 ? 0 : position - 1, text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    const size_t line_start = end == 0 ? std::string::npos : text_.rfind('\n', end - 1);
    const size_t column = end - (line_start == std::string::npos ? 0 : line_start + 1) + 1;
    throw InputError(
        where_ + ":" + std::to_string(line) + ":" + std::to_string(column) +
            ": not JSON: " + reason(error.what()),
        position >= text_.size() ? "The file ends too early: it was cut, or a bracket is not closed." : "");
  }

 private:
  // It would cut every message that the text comes to stand in.
  void refuse_nul(const std::string& text) const {
    if (text.find('\0') != std::string::npos)
      throw InputError(where_ + ": the text " + in_quotes(text) + " has a NUL in it");
  }

  struct Open {
    Json* json;
    std::unordered_set<std::string> keys;
    std::string key;  // of this container in its parent
  };

  // nlohmann's text after "... at line 1, column 2: syntax error ", without its own error number.
  static std::string reason(const std::string& what) {
    std::string text = what;
    if (const size_t at = text.find("column "); at != std::string::npos) {
      if (const size_t colon = text.find(": ", at); colon != std::string::npos) text = text.substr(colon + 2);
    } else if (const size_t bracket = text.find("] "); bracket != std::string::npos) {
      text = text.substr(bracket + 2);
    }
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    constexpr size_t kLongest = 240;
    return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
  }

  std::string place(const std::string& name) const {
    std::string path;
    for (size_t i = 1; i < open_.size(); ++i) {
      path = open_[i - 1].json->is_array() ? list_element(path, open_[i - 1].json->size() - 1)
                                           : path_step(path, open_[i].key);
    }
    return path_step(path, name);
  }

  // Appends without nlohmann's search for the key, which makes objects with many keys quadratic.
  Json* append(Json value) {
    if (++values_ > kMostValues) {
      throw InputError(where_ + ": more than " + std::to_string(kMostValues) +
                       " values: no document is that large");
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().json;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  template <typename Value>
  bool put(Value&& value) {
    append(Json(std::forward<Value>(value)));
    return true;
  }

  bool open(Json container) {
    if (open_.size() >= kDeepest) {
      throw InputError(where_ + ": nested deeper than " + std::to_string(kDeepest) +
                       " levels: no document is");
    }
    std::string key = key_;
    open_.push_back({append(std::move(container)), {}, std::move(key)});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& text_;
  const std::string& where_;
  Json root_;
  size_t values_ = 0;
  std::vector<Open> open_;
  std::string key_;
};

std::string scalar_text(const Json& json) {
  if (json.is_number_float()) PW_CHECK(std::isfinite(json.get<double>()), "a number that JSON cannot hold");
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string key_text(const std::string& key) {
  return Json(key).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool flat_array(const Json& json) {
  return json.is_array() &&
         std::none_of(json.begin(), json.end(), [](const Json& e) { return e.is_structured(); });
}

bool flat_object(const Json& json) {
  return json.is_object() && std::all_of(json.begin(), json.end(),
                                         [](const Json& e) { return !e.is_structured() || flat_array(e); });
}

std::string one_line(const Json& json) {
  if (!json.is_structured()) return scalar_text(json);
  std::string text(1, json.is_array() ? '[' : '{');
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!first) text += ", ";
    first = false;
    if (json.is_object()) text += key_text(key) + ": ";
    text += one_line(value);
  }
  return text + (json.is_array() ? ']' : '}');
}

void print(const Json& json, size_t indent, size_t column, bool root, std::string& out) {
  if (!json.is_structured() || json.empty() || flat_array(json)) {
    out += one_line(json);
    return;
  }
  if (!root && flat_object(json)) {
    const std::string line = one_line(json);
    if (column + line.size() + 1 <= kLineWidth) {  // + 1: the comma
      out += line;
      return;
    }
  }
  const std::string margin(indent + 2, ' ');
  out += json.is_array() ? "[\n" : "{\n";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!first) out += ",\n";
    first = false;
    const std::string label = json.is_object() ? key_text(key) + ": " : "";
    out += margin + label;
    print(value, indent + 2, indent + 2 + label.size(), false, out);
  }
  out += "\n" + std::string(indent, ' ') + (json.is_array() ? ']' : '}');
}

}  // namespace

std::string described(const Json& json) {
  switch (json.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "the string " + in_quotes(json.get_ref<const std::string&>());
    default:
      return json.dump();  // numbers and booleans are their own description
  }
}

std::string list_element(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

std::string join(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : separator) + words[i];
  return text;
}

std::string in_quotes(const std::string& text) {
  constexpr size_t kLongest = 80;
  const std::string shown = text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
  return Json(shown).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double number_or_nan(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

void fail_document(const std::string& where, const std::string& path, const std::string& message,
                   const std::string& remedy) {
  throw InputError(where + ": " + (path.empty() ? "" : path + ": ") + message, remedy);
}

void check_range(const std::string& where, const std::string& path, int64_t value, int64_t minimum,
                 int64_t maximum) {
  if (value >= minimum && value <= maximum) return;
  fail_document(where, path,
                range_text(std::to_string(value), std::to_string(minimum), std::to_string(maximum),
                           minimum != std::numeric_limits<int64_t>::min(),
                           maximum != std::numeric_limits<int64_t>::max(), value < minimum));
}

void check_range(const std::string& where, const std::string& path, double value, double minimum,
                 double maximum) {
  if (!std::isfinite(value)) {
    fail_document(
        where, path,
        (std::isnan(value) ? std::string("NaN") : std::string("infinity")) + " is not a finite number");
  }
  if (value >= minimum && value <= maximum) return;
  fail_document(where, path,
                range_text(Json(value).dump(), Json(minimum).dump(), Json(maximum).dump(),
                           std::isfinite(minimum), std::isfinite(maximum), value < minimum));
}

JsonReader::JsonReader(const Json& json, std::string where, std::string path)
    : json_(json), where_(std::move(where)), path_(std::move(path)) {
  if (!json_.is_object()) fail_document(where_, path_, "got " + described(json_) + ", expected an object");
}

std::string JsonReader::place(const std::string& key) const {
  return key.empty() ? path_ : path_step(path_, key);
}

void JsonReader::fail(const std::string& key, const std::string& message, const std::string& remedy) const {
  fail_document(where_, place(key), message, remedy);
}

void JsonReader::expect(std::vector<std::string> keys) { expected_ = std::move(keys); }

bool JsonReader::has(const std::string& key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
  return json_.contains(key);
}

const Json& JsonReader::get(const std::string& key) {
  if (!has(key)) {
    std::vector<std::string> strangers;
    for (const auto& [name, value] : json_.items()) {
      const auto is_in = [&name = name](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
      };
      if (!is_in(known_) && !is_in(expected_)) strangers.push_back(name);
    }
    const std::string near = nearest(key, strangers);
    fail(key, near.empty() ? "missing" : "missing; did you mean " + in_quotes(near) + " which is there?");
  }
  return json_.find(key).value();
}

const Json& JsonReader::raw(const std::string& key) { return get(key); }

std::string JsonReader::string(const std::string& key) {
  const Json& json = get(key);
  if (!json.is_string()) fail(key, "got " + described(json) + ", expected a string");
  return json.get<std::string>();
}

std::string JsonReader::string_one_of(const std::string& key, const std::vector<std::string>& allowed) {
  const std::string value = string(key);
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    const std::string near = nearest(value, allowed);
    fail(key, in_quotes(value) + " is not one of " + join(allowed, ", ") +
                  (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }
  return value;
}

bool JsonReader::boolean(const std::string& key) {
  const Json& json = get(key);
  if (!json.is_boolean()) fail(key, "got " + described(json) + ", expected true or false");
  return json.get<bool>();
}

namespace {

int64_t to_integer(const Json& json, const std::string& where, const std::string& path, int64_t minimum,
                   int64_t maximum) {
  if (!json.is_number_integer())
    fail_document(where, path, "got " + described(json) + ", expected an integer");
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    fail_document(where, path, json.dump() + " is more than " + std::to_string(maximum));
  }
  const auto value = json.get<int64_t>();
  check_range(where, path, value, minimum, maximum);
  return value;
}

}  // namespace

int64_t JsonReader::integer(const std::string& key, int64_t minimum, int64_t maximum) {
  return to_integer(get(key), where_, place(key), minimum, maximum);
}

double JsonReader::number(const std::string& key, double minimum, double maximum) {
  const Json& json = get(key);
  if (!json.is_number()) fail(key, "got " + described(json) + ", expected a number");
  const auto value = json.get<double>();
  check_range(where_, place(key), value, minimum, maximum);
  return value;
}

double JsonReader::number_or_null(const std::string& key, double minimum, double maximum) {
  if (get(key).is_null()) return std::numeric_limits<double>::quiet_NaN();
  return number(key, minimum, maximum);
}

std::vector<std::string> JsonReader::strings(const std::string& key) {
  const Json& json = get(key);
  if (!json.is_array()) fail(key, "got " + described(json) + ", expected an array of strings");
  std::vector<std::string> values;
  for (size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_string()) {
      fail_document(where_, list_element(place(key), i), "got " + described(json[i]) + ", expected a string");
    }
    values.push_back(json[i].get<std::string>());
  }
  return values;
}

std::vector<int64_t> JsonReader::integers(const std::string& key, int64_t minimum, int64_t maximum) {
  const Json& json = get(key);
  if (!json.is_array()) fail(key, "got " + described(json) + ", expected an array of integers");
  std::vector<int64_t> values;
  for (size_t i = 0; i < json.size(); ++i) {
    values.push_back(to_integer(json[i], where_, list_element(place(key), i), minimum, maximum));
  }
  return values;
}

JsonReader JsonReader::object(const std::string& key) { return JsonReader(get(key), where_, place(key)); }

std::vector<JsonReader> JsonReader::objects(const std::string& key) {
  const Json& json = get(key);
  if (!json.is_array()) fail(key, "got " + described(json) + ", expected an array of objects");
  std::vector<JsonReader> readers;
  readers.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) readers.emplace_back(json[i], where_, list_element(place(key), i));
  return readers;
}

std::vector<std::pair<std::string, JsonReader>> JsonReader::entries(const std::string& key) {
  const Json& json = get(key);
  if (!json.is_object()) fail(key, "got " + described(json) + ", expected an object of objects");
  std::vector<std::pair<std::string, JsonReader>> readers;
  readers.reserve(json.size());
  for (const auto& [name, value] : json.items()) {
    readers.emplace_back(name, JsonReader(value, where_, path_step(place(key), name)));
  }
  return readers;
}

std::vector<std::pair<std::string, std::string>> JsonReader::string_entries(const std::string& key) {
  const Json& json = get(key);
  if (!json.is_object()) fail(key, "got " + described(json) + ", expected an object of strings");
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_string()) {
      fail_document(where_, path_step(place(key), name), "got " + described(value) + ", expected a string");
    }
    values.emplace_back(name, value.get<std::string>());
  }
  return values;
}

void JsonReader::finish() const {
  for (const auto& [name, value] : json_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    std::vector<std::string> absent;  // what is there already cannot be what was meant
    for (const std::string& key : known_) {
      if (!json_.contains(key)) absent.push_back(key);
    }
    const std::string near = nearest(name, absent);
    fail_document(where_, path_step(path_, name),
                  "unknown key" + (near.empty() ? suggestion("", known_) : "; did you mean '" + near + "'?"));
  }
}

Json parse_json(const std::string& text, const std::string& where) {
  if (text.size() > kLargestText) throw InputError(where + ": larger than 1 GiB: no document is");
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw InputError(where + ": empty; expected a JSON document",
                     "Did the program that should have written it fail?");
  }
  Builder builder(text, where);
  const bool parsed = Json::sax_parse(text, &builder);
  PW_CHECK(parsed, "the builder throws when it does not like what it reads");
  return builder.take();
}

Json read_json_file(const std::filesystem::path& file) { return parse_json(read_file(file), file.string()); }

std::string json_text(const Json& json) {
  std::string text;
  print(json, 0, 0, true, text);
  return text + "\n";
}

}  // namespace pipewright
