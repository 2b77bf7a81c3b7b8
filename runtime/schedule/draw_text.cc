#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "runtime/schedule/draw.h"

namespace pipewright {

std::string draw_text(const Simulation& simulation, double slot_seconds) {
  PW_CHECK(slot_seconds > 0, slot_seconds << " seconds a slot");
  const double exact_slots = simulation.total_seconds / slot_seconds;
  PW_CHECK(exact_slots <= 1e6, exact_slots << " slots");
  constexpr double kRounding = 1e-6;  // sums of times are off by less than this part of a slot
  const size_t slots = static_cast<size_t>(std::max(0.0, std::ceil(exact_slots - kRounding)));
  std::vector<std::vector<std::string>> cells(simulation.ranks.size(), std::vector<std::string>(slots, ".."));
  size_t width = 2;
  for (const SimulatedAction& a : simulation.actions) {
    if (is_of_message(a.action.kind)) continue;
    // The slots whose middle lies in [begin, end).
    const auto first_after = [&](double seconds) {
      return static_cast<size_t>(std::max(0.0, std::ceil(seconds / slot_seconds - 0.5 - kRounding)));
    };
    const std::string text = to_text(a.action);
    for (size_t slot = first_after(a.begin_seconds); slot < std::min(slots, first_after(a.end_seconds));
         ++slot) {
      cells[a.rank][slot] = text;
      width = std::max(width, text.size());
    }
  }
  std::vector<std::string> labels;
  size_t label_width = 0;
  for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    labels.push_back(rank_label(simulation.ranks[rank].number, simulation.ranks[rank].placement));
    label_width = std::max(label_width, labels.back().size());
  }
  std::string text;
  for (size_t rank = 0; rank < cells.size(); ++rank) {
    std::string row = labels[rank] + std::string(label_width - labels[rank].size(), ' ') + " |";
    for (const std::string& cell : cells[rank]) row += " " + cell + std::string(width - cell.size(), ' ');
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

}  // namespace pipewright
