#include "optimizer/commands/memory_chart.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "graph/units.h"
#include "graph/xml.h"

namespace pipewright {
namespace {

std::string svg_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

}  // namespace

std::vector<StageBytes> bytes_of(const std::vector<StageLoad>& loads, const CostInputs& inputs) {
  std::vector<StageBytes> stages;
  for (const StageLoad& load : loads) {
    StageBytes bytes;
    bytes.fixed_bytes =
        load.parameter_bytes + load.buffer_bytes + (1 + inputs.optimizer_slots) * load.trainable_bytes;
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

std::string memory_svg(const std::vector<RankMemory>& ranks, const std::vector<int64_t>& numbers,
                       double total_seconds, const std::string& title) {
  constexpr double kLeft = 150, kPlot = 900, kBand = 48, kTop = 40;
  int64_t most = 1;
  for (const RankMemory& rank : ranks) most = std::max(most, rank.peak_bytes);
  const double height = kTop + kBand * static_cast<double>(ranks.size()) + 30;
  const double scale = total_seconds > 0 ? kPlot / total_seconds : 0;
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << svg_number(kLeft + kPlot + 20)
      << "\" height=\"" << svg_number(height) << "\" viewBox=\"0 0 " << svg_number(kLeft + kPlot + 20) << " "
      << svg_number(height)
      << "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" role=\"img\">\n<title>"
      << xml_escaped(title) << "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      << "<text x=\"8\" y=\"20\" font-weight=\"bold\">" << xml_escaped(title) << "</text>\n";
  for (size_t r = 0; r < ranks.size(); ++r) {
    const double base = kTop + kBand * static_cast<double>(r + 1);
    out << "<text x=\"8\" y=\"" << svg_number(base - 22) << "\">rank " << numbers[r]
        << "</text>\n<text x=\"8\" y=\"" << svg_number(base - 6) << "\" fill=\"#4a5a6a\">peak "
        << format_bytes(static_cast<double>(ranks[r].peak_bytes)) << "</text>\n<path fill=\"#b9cfe6\" "
        << "stroke=\"#3b6fb6\" d=\"M" << svg_number(kLeft) << " " << svg_number(base);
    double y = base;
    for (const MemoryPoint& point : ranks[r].points) {
      const double x = kLeft + point.seconds * scale;
      y = base - (kBand - 8) * static_cast<double>(point.bytes) / static_cast<double>(most);
      out << "H" << svg_number(x) << "V" << svg_number(y);
    }
    out << "H" << svg_number(kLeft + kPlot) << "V" << svg_number(base) << "Z\"><title>rank " << numbers[r]
        << ": peak " << format_bytes(static_cast<double>(ranks[r].peak_bytes)) << " at "
        << format_seconds(ranks[r].peak_seconds) << "</title></path>\n";
  }
  out << "<text x=\"" << svg_number(kLeft) << "\" y=\"" << svg_number(height - 8) << "\">0</text>\n<text x=\""
      << svg_number(kLeft + kPlot) << "\" y=\"" << svg_number(height - 8) << "\" text-anchor=\"end\">"
      << format_seconds(total_seconds) << "</text>\n</svg>\n";
  return out.str();
}

}  // namespace pipewright
