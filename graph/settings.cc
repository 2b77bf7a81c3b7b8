#include "graph/settings.h"

namespace pipewright {

TextTable settings_table(const std::vector<Setting>& settings) {
  const auto left = TableColumn::Side::kLeft;
  TextTable table({{"setting", left}, {"value", left, 0, 20}, {"from", left, 0, 12}});
  for (const Setting& setting : settings) table.add({setting.name, setting.value, setting.source});
  return table;
}

Json settings_json(const std::vector<Setting>& settings) {
  Json list = Json::array();
  for (const Setting& setting : settings) {
    const Json value = Json::parse(setting.value, nullptr, /*allow_exceptions=*/false);
    list.push_back({{"setting", setting.name},
                    {"value", value.is_discarded() ? Json(setting.value) : value},
                    {"from", setting.source}});
  }
  return list;
}

}  // namespace pipewright
