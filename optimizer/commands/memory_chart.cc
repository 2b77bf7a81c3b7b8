#include "optimizer/commands/memory_chart.h"

#include <algorithm>
#include <sstream>

#include "graph/units.h"

namespace pipewright {
std::vector<StageBytes> bytes_of(const std::vector<StageLoad>& loads, const CostInputs& inputs) {
  std::vector<StageBytes> stages;
  for (const StageLoad& load : loads) {
    StageBytes bytes;
    bytes.fixed_bytes =
        load.parameter_bytes + load.buffer_bytes + inputs.optimizer_slots * load.trainable_bytes;
    bytes.weight_gradient_bytes = load.trainable_bytes;
    bytes.version_bytes = load.trainable_bytes;
    bytes.saved_bytes = load.saved_bytes + load.in_bytes + load.held_bytes;
    if (load.recompute && !inputs.split_backward) {
      bytes.recompute = true;
      bytes.kept_bytes = load.in_bytes + load.buffer_bytes + load.once_saved_bytes + load.once_held_bytes;
      bytes.saved_bytes += load.buffer_bytes + load.once_held_bytes;
    }
    bytes.activation_bytes = load.out_bytes;
    bytes.gradient_bytes = load.in_bytes;
    stages.push_back(bytes);
  }
  return stages;
}

std::string memory_csv(const std::vector<RankMemory>& ranks, const std::vector<int64_t>& numbers) {
  std::ostringstream out;
  out << "rank,seconds,bytes\n";
  out.precision(9);
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const MemoryPoint& point : ranks[r].points)
      out << numbers[r] << "," << point.seconds << "," << point.bytes << "\n";
  }
  return out.str();
}

Svg memory_svg(const std::vector<RankMemory>& ranks, const std::vector<int64_t>& numbers,
               double total_seconds, const std::string& title) {
  constexpr double kLeft = 150, kPlot = 900, kBand = 48, kTop = 40;
  int64_t most = 1;
  for (const RankMemory& rank : ranks) most = std::max(most, rank.peak_bytes);
  const double height = kTop + kBand * static_cast<double>(ranks.size()) + 30;
  const double scale = total_seconds > 0 ? kPlot / total_seconds : 0;
  Svg svg(kLeft + kPlot + 20, height, title);
  svg.text(8, 20, title, "head");
  for (size_t r = 0; r < ranks.size(); ++r) {
    const double base = kTop + kBand * static_cast<double>(r + 1);
    const std::string name = "rank " + std::to_string(numbers[r]);
    const std::string peak = "peak " + format_bytes(static_cast<double>(ranks[r].peak_bytes));
    svg.text(8, base - 22, name);
    svg.text(8, base - 6, peak, "muted");
    std::string path = "M" + svg_number(kLeft) + " " + svg_number(base);
    for (const MemoryPoint& point : ranks[r].points) {
      const double part = static_cast<double>(point.bytes) / static_cast<double>(most);
      path += "H" + svg_number(kLeft + point.seconds * scale) + "V" + svg_number(base - (kBand - 8) * part);
    }
    path += "H" + svg_number(kLeft + kPlot) + "V" + svg_number(base) + "Z";
    svg.path(path, area_look(0), name + ": " + peak + " at " + format_seconds(ranks[r].peak_seconds));
  }
  svg.text(kLeft, height - 8, "0");
  svg.text(kLeft + kPlot, height - 8, format_seconds(total_seconds), "ink", Svg::Anchor::kEnd);
  return svg;
}

}  // namespace pipewright
