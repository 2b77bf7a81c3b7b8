// Tables of named rows: their names, the row of a name, and what help says of them.
#pragma once

#include <string>
#include <vector>

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {

template <typename Row>
std::vector<std::string> names_of(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) names.emplace_back(row.name);
  return names;
}

/// Null for a name that is not known.
template <typename Row>
const Row* find_row(const std::vector<Row>& rows, const std::string& name) {
  for (const Row& row : rows)
    if (name == row.name) return &row;
  return nullptr;
}

/// InputError "`what` 'alll' is not known; did you mean 'all'?".
template <typename Row>
const Row& row_named(const std::vector<Row>& rows, const std::string& what, const std::string& name) {
  if (const Row* row = find_row(rows, name)) return *row;
  throw InputError(what + " '" + name + "' is not known" + suggestion(name, names_of(rows)));
}

/// "gloo (TCP), shm (memory that ranks of one host share)": for the help of an option.
template <typename Row>
std::string help_of(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    text += (text.empty() ? "" : ", ") + std::string(row.name) + " (" + row.summary + ")";
  }
  return text;
}

}  // namespace pipewright
