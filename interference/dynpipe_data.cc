#include "interference/dynpipe_data.h"

#include <charconv>
#include <cmath>

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

constexpr size_t kStretches = 5;
constexpr double kMostTime = 1e6;

double number_of(JsonReader& reader, const std::string& key) {
  const Json& json = reader.raw(key);
  if (json.is_number()) return json.get<double>();
  double value = 0;
  if (json.is_string()) {
    const std::string& text = json.get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value)) return value;
  }
  reader.fail(key, "got " + described(json) + ", expected a number");
}

}  // namespace

bool is_dynpipe_row(const Json& json) {
  return json.is_object() && json.contains("profile") && json.contains("output");
}

void add_dynpipe_row(const Json& json, const std::string& where, InterferenceData* data) {
  JsonReader reader(json, where);
  JsonReader profile = reader.object("profile"), output = reader.object("output");
  reader.finish();
  InterferenceRow row;
  std::vector<std::string> names;
  for (const auto& item : json["profile"].items()) {
    names.push_back(item.key());
    row.features.push_back(number_of(profile, item.key()));
  }
  for (const auto& item : json["output"].items()) {
    if (item.key() == "time") continue;
    names.push_back(item.key());
    row.features.push_back(number_of(output, item.key()));
  }
  row.slowdown = output.number("time", 1e-6, kMostTime);
  if (data->features.empty()) data->features = names;
  for (size_t i = 0; i < std::max(names.size(), data->features.size()); ++i) {
    const std::string expected = i < data->features.size() ? data->features[i] : "no further one";
    const std::string got = i < names.size() ? names[i] : "no further one";
    if (got != expected)
      throw InputError(where + ": feature " + std::to_string(i + 1) + ": got " + in_quotes(got) +
                       ", expected " + in_quotes(expected) + " as in the first row");
  }
  if (row.slowdown != 1) data->rows.push_back(std::move(row));
}

void group_by_stretches(InterferenceData* data) {
  const size_t count = data->rows.size();
  for (size_t i = 0; i < count; ++i)
    data->rows[i].group = "stretch " + std::to_string(i * kStretches / count + 1);
}

}  // namespace pipewright
