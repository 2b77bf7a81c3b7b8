// The fields of the run document: the only list of them. Reading, writing, checking, the options of the
// command line and their help all walk through it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "graph/run.h"

namespace pipewright {

/// How a field is written on the command line; in the document it is a plain value of its type.
enum class FieldForm {
  kPlain,
  kFlag,     ///< `--no-save`: there or not
  kSeconds,  ///< `30s`
  kBytes,    ///< `25MiB`
};

/// What a value must be; rules that span several fields are in Run::validate().
struct FieldRule {
  int64_t least = 0, most = 0;          ///< of an integer
  double lowest = 0, highest = 0;       ///< of a number
  std::vector<std::string> names = {};  ///< of a text: one of these
  const char* not_empty = nullptr;      ///< of a text: what is expected there
};

using FieldValue = std::variant<std::string*, int64_t*, double*, bool*, std::vector<std::string>*,
                                std::vector<ParameterGroup>*>;
using ConstFieldValue = std::variant<const std::string*, const int64_t*, const double*, const bool*,
                                     const std::vector<std::string>*, const std::vector<ParameterGroup>*>;

struct RunField {
  const char* group;  ///< the object of the document that holds it; "": the document itself
  const char* key;
  const char* option;  ///< without "--"; "": there is none
  FieldForm form;
  FieldValue (*in)(Run& run);
  FieldRule rule;
  std::string help;

  ConstFieldValue of(const Run& run) const;
  std::string path() const { return *group ? std::string(group) + "." + key : key; }
};

/// In the order of the document (docs/formats.md) and of the help.
const std::vector<RunField>& run_fields();
/// The one with this option, which is there: of other programs that have the option too.
const RunField& run_field_of(const std::string& option);

}  // namespace pipewright
