#include "graph/spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

// The parts between commas; "\," is a comma that does not separate.
std::vector<std::string> split_options(const std::string& text) {
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == ',') {
      parts.back() += text[++i];
    } else if (text[i] == ',') {
      parts.emplace_back();
    } else {
      parts.back() += text[i];
    }
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
  std::string text = name;
  for (size_t i = 0; i < options.size(); ++i) {
    text += (i == 0 ? ":" : ",") + options[i].first + "=";
    for (const char c : options[i].second) text += c == ',' ? std::string("\\,") : std::string(1, c);
  }
  return text;
}

Spec parse_spec(const std::string& text, const std::string& kind) {
  const auto fail = [&](const std::string& message) {
    throw InputError(kind + " '" + text + "': " + message, "a SPEC is NAME or NAME:key=value,key=value");
  };
  Spec spec;
  spec.kind = kind;
  const size_t colon = text.find(':');
  spec.name = text.substr(0, colon);
  if (spec.name.empty()) fail("it has no name");
  if (colon == std::string::npos) return spec;
  for (const std::string& part : split_options(text.substr(colon + 1))) {
    const size_t equals = part.find('=');
    if (part.empty()) fail("an option is empty; expected key=value");
    if (equals == std::string::npos) fail("option '" + part + "' has no value; expected " + part + "=VALUE");
    const std::string key = part.substr(0, equals), value = part.substr(equals + 1);
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
