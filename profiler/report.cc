#include "profiler/report.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "graph/error.h"
#include "graph/units.h"
#include "pages/charts.h"
#include "pages/page.h"
#include "profiler/layers.h"

namespace pipewright {
namespace {

std::string fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

/// Forward, then the two parts of backward of each layer.
Svg time_chart(const Profile& profile) {
  std::vector<Bar> bars;
  for (const LayerCost& layer : layer_costs(profile)) {
    Bar bar{
        layer.name, {}, format_seconds(layer.compute_seconds()) + " (" + fixed(100 * layer.share) + " %)"};
    for (const auto& [name, seconds] : {std::pair{"forward", layer.forward_seconds},
                                        std::pair{"backward of inputs", layer.backward_input_seconds},
                                        std::pair{"backward of weights", layer.backward_weight_seconds}})
      bar.parts.push_back({seconds, layer.name + ", " + name + ": " + format_seconds(seconds)});
    bars.push_back(std::move(bar));
  }
  return bar_chart("Time per layer of " + profile.model,
                   {"forward", "backward of inputs", "backward of weights"}, bars, Quantity::kSeconds);
}

Svg memory_chart(const Profile& profile) {
  std::vector<Bar> bars;
  for (const LayerCost& layer : layer_costs(profile)) {
    Bar bar{layer.name, {}, ""};
    for (const auto& [name, bytes] :
         {std::pair{"parameters", layer.parameter_bytes},
          std::pair{"saved for the backward", layer.saved_bytes}, std::pair{"output", layer.output_bytes}}) {
      const auto value = static_cast<double>(bytes);
      bar.parts.push_back({value, layer.name + ", " + name + ": " + format_bytes(value)});
    }
    bars.push_back(std::move(bar));
  }
  return bar_chart("Bytes per layer of " + profile.model, {"parameters", "saved for the backward", "output"},
                   bars, Quantity::kBytes);
}

std::string svg(const Profile& profile, const std::string&) { return time_chart(profile).file(); }

std::string html(const Profile& profile, const std::string& file) {
  Page page("Profile of " + profile.model);
  const std::vector<std::string> lines = headlines(profile);
  for (const std::string& line : lines) line == lines.front() ? page.lead(line) : page.paragraph(line);
  page.heading("Time");
  page.figure(time_chart(profile), "Time per layer, one minibatch");
  page.heading("Memory");
  page.figure(memory_chart(profile), "Bytes per layer: a cut behind a layer sends its output");
  page.heading("Layers");
  page.table(layer_table(profile), "Layers");
  page.heading("Measured with");
  TextTable table({{"what", TableColumn::Side::kLeft}, {"value", TableColumn::Side::kLeft}});
  for (const auto& [key, value] : profile.provenance) table.add({key, value});
  page.table(table, "Where the numbers come from");
  page.heading("Next");
  page.paragraph("Ask which way to run it is the fastest on your devices:");
  page.command("pipewright-optimizer compare --profile " + file + " --gpus 2 --output plans");
  return page.html();
}

std::string markdown(const Profile& profile, const std::string&) {
  std::ostringstream out;
  out << "# Profile of " << profile.model << "\n\n";
  for (const auto& line : headlines(profile)) out << line << "\n\n";
  out << layer_table(profile).markdown() << "\nMeasured with:";
  for (const auto& [key, value] : profile.provenance)
    out << (&key == &profile.provenance[0].first ? " " : ", ") << key << " " << value;
  out << ".\n";
  return out.str();
}

std::string dot(const Profile& profile, const std::string&) {
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
  std::string (*write)(const Profile& profile, const std::string& profile_file);
};
constexpr Format kFormats[] = {{".html", html}, {".md", markdown}, {".svg", svg}, {".dot", dot}};

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

std::string report_text(const Profile& profile, const std::filesystem::path& file,
                        const std::filesystem::path& profile_file) {
  return format_of(file).write(profile, profile_file.string());
}

void check_report_suffix(const std::filesystem::path& file) { format_of(file); }

}  // namespace pipewright
