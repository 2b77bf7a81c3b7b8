#include "interference/data_set.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "graph/regular_file.h"
#include "interference/dynpipe_data.h"

namespace pipewright {
namespace {

constexpr double kMostSlowdown = 1e6;

InterferenceData header_of(const Json& json, const std::string& where) {
  InterferenceData data;
  JsonReader reader(json, where);
  check_schema(reader, InterferenceData::kSchema);
  data.features = reader.strings("features");
  if (data.features.empty()) reader.fail("features", "there are none");
  std::vector<std::string> sorted = data.features;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) reader.fail("features", in_quotes(*twice) + " is there twice");
  data.provenance = reader.string_entries("provenance");
  reader.finish();
  return data;
}

InterferenceRow row_of(const Json& json, const std::string& where, size_t features) {
  JsonReader reader(json, where);
  reader.expect({"hogs", "processes", "work", "features", "slowdown"});
  InterferenceRow row;
  row.group = reader.string("hogs");
  row.processes = reader.integer("processes", 0, kMostCount);
  row.work = reader.string("work");
  const Json& values = reader.raw("features");
  if (!values.is_array() || values.size() != features)
    reader.fail("features", "got " + described(values) + ", expected an array of " +
                                std::to_string(features) + " numbers or null, as the first line says");
  for (const Json& value : values) {
    if (!value.is_null() && !value.is_number())
      reader.fail("features", "got " + described(value) + ", expected a number or null");
    row.features.push_back(number_or_nan(value));
  }
  row.slowdown = reader.number("slowdown", 1e-6, kMostSlowdown);
  reader.finish();
  return row;
}

}  // namespace

InterferenceData InterferenceData::without(const std::vector<std::string>& names) const {
  std::vector<size_t> kept;
  for (size_t f = 0; f < features.size(); ++f)
    if (std::find(names.begin(), names.end(), features[f]) == names.end()) kept.push_back(f);
  InterferenceData other = *this;
  const auto keep = [&](const auto& from, auto* to) {
    to->clear();
    for (const size_t f : kept) to->push_back(from[f]);
  };
  keep(features, &other.features);
  for (size_t row = 0; row < rows.size(); ++row) keep(rows[row].features, &other.rows[row].features);
  return other;
}

std::string InterferenceData::text() const {
  Json header;
  header["schema"] = kSchema;
  header["features"] = features;
  header["provenance"] = Json::object();
  for (const auto& [what, value] : provenance) header["provenance"][what] = value;
  std::string text = header.dump() + "\n";
  for (const InterferenceRow& row : rows) {
    Json json;
    json["hogs"] = row.group;
    json["processes"] = row.processes;
    json["work"] = row.work;
    json["features"] = Json::array();
    for (const double value : row.features) json["features"].push_back(finite_or_null(value));
    json["slowdown"] = row.slowdown;
    text += json.dump() + "\n";
  }
  return text;
}

InterferenceData parse_interference_data(const std::string& text, const std::string& where) {
  std::istringstream lines(text);
  InterferenceData data;
  bool begun = false, is_dynpipe = false;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = where + ":" + std::to_string(number);
    const Json json = parse_json(line, place);
    if (!begun) {
      begun = true;
      is_dynpipe = is_dynpipe_row(json);
      if (!is_dynpipe) {
        data = header_of(json, place);
        continue;
      }
    }
    if (is_dynpipe) {
      add_dynpipe_row(json, place, &data);
    } else {
      data.rows.push_back(row_of(json, place, data.features.size()));
    }
  }
  if (is_dynpipe) group_by_stretches(&data);
  if (data.rows.empty())
    throw InputError(where + ": there are no rows in it",
                     "Next: pipewright-profiler interference makes a data set.");
  return data;
}

InterferenceData read_interference_data(const std::filesystem::path& file) {
  return parse_interference_data(read_regular_file(file), file.string());
}

}  // namespace pipewright
