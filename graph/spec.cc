#include "graph/spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

// Written with a backslash before it where it would mean something else.
bool is_escaped(char c) { return c == '\\' || c == ',' || c == ':'; }

// From `from` on; npos for none. What has a backslash before it does not count.
size_t find_plain(const std::string& text, char wanted, size_t from = 0) {
  for (size_t i = from; i < text.size(); ++i) {
    if (text[i] == wanted) return i;
    if (text[i] == '\\' && i + 1 < text.size() && is_escaped(text[i + 1])) ++i;
  }
  return std::string::npos;
}

std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && is_escaped(text[i + 1])) ++i;
    plain += text[i];
  }
  return plain;
}

// `separator`: what would end the text.
std::string escaped(const std::string& text, char separator) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool ambiguous = text[i] == '\\' && (i + 1 == text.size() || is_escaped(text[i + 1]));
    if (ambiguous || text[i] == separator) result += '\\';
    result += text[i];
  }
  return result;
}

// As written, with their backslashes. A comma behind which there is no KEY= belongs to the value before it.
std::vector<std::string> split_options(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(find_plain(text, ',', begin), text.size());
    const std::string part = text.substr(begin, comma - begin);
    if (!parts.empty() && !part.empty() && part.find('=') == std::string::npos) {
      parts.back() += "," + part;
    } else {
      parts.push_back(part);
    }
    begin = comma + 1;
  }
  return parts;
}

template <typename T>
bool parse_whole(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stopped == end;
}

std::string range_words(double minimum, double maximum) {
  std::ostringstream out;
  out << minimum << ".." << maximum;
  return out.str();
}

}  // namespace

std::string Spec::text() const {
  std::string text = escaped(name, ':');
  for (size_t i = 0; i < options.size(); ++i)
    text += (i == 0 ? ":" : ",") + options[i].first + "=" + escaped(options[i].second, ',');
  return text;
}

Spec parse_spec(const std::string& text, const std::string& kind) {
  const auto fail = [&](const std::string& message) {
    throw InputError(
        kind + " '" + text + "': " + message,
        "a SPEC is NAME or NAME:key=value,key=value, with '\\,' for a comma and '\\:' for a colon "
        "that are part of a path");
  };
  Spec spec;
  spec.kind = kind;
  const size_t colon = find_plain(text, ':');
  spec.name = unescaped(text.substr(0, colon));
  if (spec.name.empty()) fail("it has no name");
  if (colon == std::string::npos) return spec;
  for (const std::string& part : split_options(text.substr(colon + 1))) {
    const size_t equals = part.find('=');
    if (part.empty()) fail("an option is empty; expected key=value");
    if (equals == std::string::npos) fail("option '" + part + "' has no value; expected " + part + "=VALUE");
    const std::string key = part.substr(0, equals), value = unescaped(part.substr(equals + 1));
    if (key.empty()) fail("option '" + part + "' has no key; expected key=value");
    if (value.empty()) fail("option '" + key + "' has an empty value");
    for (const auto& [earlier, unused] : spec.options) {
      if (earlier == key) fail("option '" + key + "' is given twice");
    }
    spec.options.emplace_back(key, value);
  }
  return spec;
}

const std::string* SpecOptions::find(const std::string& name) {
  if (std::find(known_.begin(), known_.end(), name) == known_.end()) known_.push_back(name);
  for (const auto& [key, value] : spec_.options) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool SpecOptions::has(const std::string& name) { return find(name) != nullptr; }

std::string SpecOptions::string(const std::string& name, const std::string& fallback) {
  const std::string* value = find(name);
  return value ? *value : fallback;
}

std::string SpecOptions::choice(const std::string& name, const std::string& fallback,
                                const std::vector<std::string>& allowed) {
  const std::string value = string(name, fallback);
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    std::string list;
    for (const std::string& each : allowed) list += (list.empty() ? "" : "|") + each;
    const std::string near = nearest(value, allowed);
    fail(name,
         "got '" + value + "', expected " + list + (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }
  return value;
}

int64_t SpecOptions::integer(const std::string& name, int64_t fallback, int64_t minimum, int64_t maximum) {
  const std::string* text = find(name);
  if (!text) return fallback;
  int64_t value = 0;
  if (!parse_whole(*text, &value) || value < minimum || value > maximum) {
    fail(name, "got '" + *text + "', expected an integer in " + std::to_string(minimum) + ".." +
                   std::to_string(maximum));
  }
  return value;
}

double SpecOptions::number(const std::string& name, double fallback, double minimum, double maximum) {
  const std::string* text = find(name);
  if (!text) return fallback;
  double value = 0;
  if (!parse_whole(*text, &value) || !std::isfinite(value) || value < minimum || value > maximum) {
    fail(name, "got '" + *text + "', expected a number in " + range_words(minimum, maximum));
  }
  return value;
}

void SpecOptions::finish() const {
  for (const auto& [key, value] : spec_.options) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    if (known_.empty()) fail("", "unknown option '" + key + "'; '" + spec_.name + "' has no options");
    fail("", "unknown option '" + key + "'" + suggestion(key, known_));
  }
}

void SpecOptions::fail(const std::string& name, const std::string& message, const std::string& remedy) const {
  throw InputError(spec_.kind + " '" + spec_.text() + "': " + (name.empty() ? "" : name + ": ") + message,
                   remedy);
}

}  // namespace pipewright
