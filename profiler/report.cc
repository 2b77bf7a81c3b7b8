#include "profiler/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "graph/error.h"
#include "graph/units.h"
#include "graph/xml.h"
#include "profiler/layers.h"

namespace pipewright {
namespace {

constexpr const char* kForwardColour = "#3b76af";
constexpr const char* kInputColour = "#e8a33d";
constexpr const char* kWeightColour = "#b5483f";

/// 1, 2 or 5 times a power of ten, so that an axis up to `most` has four to nine steps.
double nice_step(double most) {
  const double magnitude = std::pow(10.0, std::floor(std::log10(most / 5)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (most / (factor * magnitude) <= 9) return factor * magnitude;
  return 10 * magnitude;
}

std::string fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

/// Horizontal bars, one per layer: forward, then the two parts of backward.
std::string chart(const Profile& profile) {
  const std::vector<LayerCost> layers = layer_costs(profile);
  size_t longest = 5;
  double most = 0;
  for (const auto& layer : layers) {
    longest = std::max(longest, layer.name.size());
    most = std::max(most, layer.compute_seconds());
  }
  if (most <= 0) most = 1e-6;
  // Width of a character of the 12 px face, on average and a little more.
  const double left = 16 + 7.0 * static_cast<double>(longest), plot = 560, right = 140;
  const double top = 64, row = 20, bar = 14;
  const double width = left + plot + right, height = top + row * static_cast<double>(layers.size()) + 16;
  const double step = nice_step(most);

  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << fixed(width) << "\" height=\""
      << fixed(height) << "\" viewBox=\"0 0 " << fixed(width) << " " << fixed(height)
      << "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" role=\"img\">\n"
      << "<title>Time per layer of " << xml_escaped(profile.model) << "</title>\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  double x = left;
  for (const auto& [colour, text] :
       {std::pair{kForwardColour, "forward"}, std::pair{kInputColour, "backward: inputs"},
        std::pair{kWeightColour, "backward: weights"}}) {
    out << "<rect x=\"" << fixed(x) << "\" y=\"12\" width=\"12\" height=\"12\" fill=\"" << colour << "\"/>"
        << "<text x=\"" << fixed(x + 18) << "\" y=\"22\" fill=\"#222222\">" << text << "</text>\n";
    x += 150;
  }
  for (double tick = 0; tick <= most * 1.0001; tick += step) {
    const double at = left + plot * tick / most;
    out << "<line x1=\"" << fixed(at) << "\" y1=\"" << fixed(top - 8) << "\" x2=\"" << fixed(at) << "\" y2=\""
        << fixed(height - 12) << "\" stroke=\"#dddddd\"/>"
        << "<text x=\"" << fixed(at) << "\" y=\"" << fixed(top - 14)
        << "\" text-anchor=\"middle\" fill=\"#666666\">"
        << (tick == 0 ? "0" : xml_escaped(format_seconds(tick))) << "</text>\n";
  }
  double y = top;
  for (const auto& layer : layers) {
    out << "<g><title>" << xml_escaped(layer.name) << ": forward "
        << xml_escaped(format_seconds(layer.forward_seconds)) << ", backward inputs "
        << xml_escaped(format_seconds(layer.backward_input_seconds)) << ", weights "
        << xml_escaped(format_seconds(layer.backward_weight_seconds)) << "</title>"
        << "<text x=\"" << fixed(left - 8) << "\" y=\"" << fixed(y + 11)
        << "\" text-anchor=\"end\" fill=\"#222222\">" << xml_escaped(layer.name) << "</text>";
    double from = left;
    for (const auto& [colour, seconds] : {std::pair{kForwardColour, layer.forward_seconds},
                                          std::pair{kInputColour, layer.backward_input_seconds},
                                          std::pair{kWeightColour, layer.backward_weight_seconds}}) {
      const double length = plot * seconds / most;
      if (length > 0)
        out << "<rect x=\"" << fixed(from) << "\" y=\"" << fixed(y) << "\" width=\""
            << fixed(std::max(length, 0.1)) << "\" height=\"" << fixed(bar) << "\" fill=\"" << colour
            << "\"/>";
      from += length;
    }
    out << "<text x=\"" << fixed(from + 6) << "\" y=\"" << fixed(y + 11) << "\" fill=\"#666666\">"
        << xml_escaped(format_seconds(layer.compute_seconds())) << " (" << fixed(100 * layer.share)
        << " %)</text></g>\n";
    y += row;
  }
  out << "</svg>\n";
  return out.str();
}

std::string html(const Profile& profile) {
  std::ostringstream out;
  out << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      << "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Profile of "
      << xml_escaped(profile.model) << "</title>\n<style>\n"
      << "body { font-family: Helvetica, Arial, sans-serif; font-size: 14px; color: #222; background: #fff; "
         "margin: 2em; }\n"
      << "h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 2em; }\n"
      << "table { border-collapse: collapse; } th, td { padding: 3px 12px; text-align: right; "
         "font-variant-numeric: tabular-nums; }\n"
      << "th { border-bottom: 1px solid #888; } th:first-child, td:first-child { text-align: left; }\n"
      << "tr:last-child td { border-top: 1px solid #888; font-weight: bold; } tbody tr:hover { background: "
         "#f3f3f3; }\n"
      << "table.plain td { text-align: left; font-weight: normal; border: none; }\n"
      << ".scroll { overflow-x: auto; }\n</style>\n</head>\n<body>\n<h1>Profile of "
      << xml_escaped(profile.model) << "</h1>\n";
  for (const auto& line : headlines(profile)) out << "<p>" << xml_escaped(line) << "</p>\n";
  out << "<h2>Time per layer, one minibatch</h2>\n<div class=\"scroll\">\n"
      << chart(profile) << "</div>\n"
      << "<h2>Layers</h2>\n<div class=\"scroll\">\n<table>\n";
  const Table table = layer_table(profile);
  for (size_t i = 0; i < table.size(); ++i) {
    const char* cell = i == 0 ? "th" : "td";
    out << (i == 0 ? "<thead>" : i == 1 ? "<tbody>" : "") << "<tr>";
    for (const auto& text : table[i]) out << "<" << cell << ">" << xml_escaped(text) << "</" << cell << ">";
    out << "</tr>" << (i == 0 ? "</thead>" : "") << "\n";
  }
  out << "</tbody></table>\n</div>\n<h2>Measured with</h2>\n<table class=\"plain\">\n";
  for (const auto& [key, value] : profile.provenance)
    out << "<tr><td>" << xml_escaped(key) << "</td><td>" << xml_escaped(value) << "</td></tr>\n";
  out << "</table>\n</body>\n</html>\n";
  return out.str();
}

std::string markdown(const Profile& profile) {
  std::ostringstream out;
  out << "# Profile of " << profile.model << "\n\n";
  for (const auto& line : headlines(profile)) out << line << "\n\n";
  const Table table = layer_table(profile);
  for (size_t i = 0; i < table.size(); ++i) {
    for (const auto& cell : table[i]) out << "| " << cell << " ";
    out << "|\n";
    if (i > 0) continue;
    for (size_t column = 0; column < table[i].size(); ++column) out << (column == 0 ? "| --- " : "| ---: ");
    out << "|\n";
  }
  out << "\nMeasured with:";
  for (const auto& [key, value] : profile.provenance)
    out << (&key == &profile.provenance[0].first ? " " : ", ") << key << " " << value;
  out << ".\n";
  return out.str();
}

std::string dot(const Profile& profile) {
  const auto layers = layer_costs(profile);
  std::ostringstream out;
  out << "digraph profile {\n  node [shape=box, fontname=\"Helvetica\", style=filled, fillcolor=white];\n"
      << "  edge [fontname=\"Helvetica\", fontsize=10];\n";
  double most = 0;
  for (const auto& layer : layers) most = std::max(most, layer.share);
  const auto quoted = [](const std::string& text) {
    std::string plain;
    for (const char c : text) plain += (c == '"' || c == '\\') ? std::string("\\") + c : std::string(1, c);
    return plain;
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    // The more of the time, the redder.
    char colour[16];
    std::snprintf(colour, sizeof colour, "0.05 %.3f 1.0", most > 0 ? 0.6 * layers[i].share / most : 0.0);
    out << "  n" << i << " [label=\"" << quoted(layers[i].name) << "\\n"
        << format_seconds(layers[i].compute_seconds()) << " (" << fixed(100 * layers[i].share)
        << " %)\", fillcolor=\"" << colour << "\"];\n";
  }
  for (const auto& edge : layer_edges(profile))
    out << "  n" << edge.from << " -> n" << edge.to << " [label=\""
        << format_bytes(static_cast<double>(edge.bytes)) << "\"];\n";
  out << "}\n";
  return out.str();
}

struct Format {
  const char* suffix;
  std::string (*write)(const Profile&);
};
constexpr Format kFormats[] = {{".html", html}, {".md", markdown}, {".svg", chart}, {".dot", dot}};

const Format& format_of(const std::filesystem::path& file) {
  std::string known;
  for (const Format& format : kFormats) {
    if (file.extension() == format.suffix) return format;
    known += (known.empty() ? "" : ", ") + std::string(format.suffix);
  }
  throw InputError("--output: cannot tell the kind of report from the suffix of '" + file.string() +
                   "'; known: " + known);
}

}  // namespace

std::string report_text(const Profile& profile, const std::filesystem::path& file) {
  return format_of(file).write(profile);
}

void check_report_suffix(const std::filesystem::path& file) { format_of(file); }

}  // namespace pipewright
