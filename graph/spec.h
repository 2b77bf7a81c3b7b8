// SPECs as people write them on the command line: "NAME" or "NAME:key=value,key=value". Models, data sets and
// whatever else is picked from a table by name are given this way.
//
// In names and values alike "\,", "\:" and "\\" are a comma, a colon and a backslash that separate nothing;
// any other backslash is one. Without it the name ends at the first colon and an option at a comma behind
// which there is another KEY=, so most paths are written as they are. Options are read as strictly as
// documents (json.h): a reader asks for each option it knows and then calls finish().
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

struct Spec {
  std::string kind;  ///< what it picks, for messages: "model", "data"
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;  ///< in the order given

  /// What parse_spec() reads back as this Spec.
  std::string text() const;
};

/// InputError: empty name, an option without '=' or without a key or value, an option given twice.
Spec parse_spec(const std::string& text, const std::string& kind);

/// The options of one SPEC, each asked for by the name, the default and the range it has. Asking marks it as
/// known. All errors are InputErrors that name the SPEC, the option, what was got and what was expected.
class SpecOptions {
 public:
  explicit SpecOptions(Spec spec) : spec_(std::move(spec)) {}

  bool has(const std::string& name);
  std::string string(const std::string& name, const std::string& fallback);
  std::string choice(const std::string& name, const std::string& fallback,
                     const std::vector<std::string>& allowed);
  int64_t integer(const std::string& name, int64_t fallback, int64_t minimum, int64_t maximum);
  double number(const std::string& name, double fallback, double minimum, double maximum);

  /// InputError naming the nearest known option if one was given that nobody asked for. Call it before slow
  /// work.
  void finish() const;

  /// InputError about the option `name` ("" = the whole SPEC): for rules that span options.
  [[noreturn]] void fail(const std::string& name, const std::string& message,
                         const std::string& remedy = "") const;
  const Spec& spec() const { return spec_; }

 private:
  const std::string* find(const std::string& name);

  Spec spec_;
  std::vector<std::string> known_;
};

}  // namespace pipewright
