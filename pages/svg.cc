#include "pages/svg.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "graph/text_table.h"
#include "graph/xml.h"

namespace pipewright {
namespace {

struct Colour {
  const char* name;
  const char* light;
  const char* dark;
};
// Each has a contrast of 3 to its paper, and neighbours differ in lightness.
constexpr std::array<Colour, 8> kColours = {{{"0", "#2f6ca3", "#7fb2e0"},
                                             {"1", "#c98a1b", "#e9b44c"},
                                             {"2", "#1f6b45", "#5fb98a"},
                                             {"3", "#9a6bc2", "#c7a6ec"},
                                             {"4", "#a8324a", "#ef8194"},
                                             {"5", "#7a8691", "#98a4af"},
                                             {"6", "#6b5a00", "#cdbb55"},
                                             {"7", "#00808f", "#59c3d1"}}};
// Text: at least 4.5 on paper, lane and box.
constexpr std::array<Colour, 7> kInks = {{{"ink", "#1c2733", "#e4eaf0"},
                                          {"muted", "#4b5966", "#a9b5c0"},
                                          {"paper", "#ffffff", "#14191f"},
                                          {"lane", "#e9ecef", "#232c35"},
                                          {"box", "#eaf1f8", "#1f2c3a"},
                                          {"edge", "#2f6ca3", "#7fb2e0"},
                                          {"rule", "#c8d2dc", "#3a4653"}}};

std::string variables(const char* Colour::*scheme) {
  std::string text;
  for (const Colour& each : kColours) text += std::string("--c") + each.name + ":" + each.*scheme + ";";
  for (const Colour& each : kInks) text += std::string("--") + each.name + ":" + each.*scheme + ";";
  return text;
}

/// In pages by variables, which follow the reader's scheme; in files in light, as not every program that
/// draws SVG knows variables.
std::string of(const std::string& name, bool dark) {
  if (dark) return "var(--" + name + ")";
  for (const Colour& each : kColours)
    if (name == std::string("c") + each.name) return each.light;
  for (const Colour& each : kInks)
    if (name == each.name) return each.light;
  return "#000000";
}

double luminance(const std::string& colour) {
  double sum = 0;
  constexpr double kWeights[] = {0.2126, 0.7152, 0.0722};
  for (size_t i = 0; i < 3; ++i) {
    const double value = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += kWeights[i] * (value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4));
  }
  return sum;
}

std::string attributes(double x, double y, double width, double height) {
  return " x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" + svg_number(width) +
         "\" height=\"" + svg_number(height) + "\"";
}

}  // namespace

Look area_look(size_t n) { return "c" + std::to_string(n % kColours.size()); }
Look line_look(size_t n) {
  return "l" + std::to_string(n % kColours.size()) + (n < kColours.size() ? "" : " again");
}

std::string look_styles(bool dark) {
  std::string text;
  if (dark) {
    text += ":root{color-scheme:light dark;" + variables(&Colour::light) + "}\n" +
            "@media (prefers-color-scheme:dark){:root{" + variables(&Colour::dark) + "}}\n";
  }
  for (const Colour& each : kColours) {
    const std::string colour = of(std::string("c") + each.name, dark);
    text += std::string(".c") + each.name + "{fill:" + colour + "}.l" + each.name +
            "{fill:none;stroke:" + colour + ";stroke-width:1.5}\n";
  }
  text += ".again{stroke-dasharray:7 3}.names{white-space:pre}.ink{fill:" + of("ink", dark) +
          "}.muted{fill:" + of("muted", dark) + "}.head{fill:" + of("ink", dark) +
          ";font-weight:bold}.lane{fill:" + of("lane", dark) + "}.box{fill:" + of("box", dark) +
          ";stroke:" + of("edge", dark) + "}.grid{stroke:" + of("rule", dark) +
          "}.mark{stroke:" + of("ink", dark) +
          ";stroke-dasharray:4 3}.arrow{fill:none;stroke:" + of("ink", dark) + ";stroke-width:1.5}\n";
  return text;
}

std::string svg_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  std::string number = text;
  if (number.size() > 2 && number.compare(number.size() - 2, 2, ".0") == 0) number.resize(number.size() - 2);
  return number == "-0" ? "0" : number;
}

double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

double text_width(const std::string& text) { return 6.8 * static_cast<double>(characters_of(text)); }

Svg::Svg(double width, double height, std::string title)
    : width_(width), height_(height), title_(std::move(title)) {}

void Svg::end_element(const std::string& name, const std::string& tip) {
  if (tip.empty())
    out_ << "/>\n";
  else
    out_ << "><title>" << xml_escaped(tip) << "</title></" << name << ">\n";
}

void Svg::area(double x, double y, double width, double height, const Look& look, const std::string& tip) {
  out_ << "<rect class=\"" << look << "\"" << attributes(x, y, width, height);
  end_element("rect", tip);
}

void Svg::coloured(double x, double y, double width, double height, const std::string& colour,
                   const std::string& tip) {
  out_ << "<rect fill=\"" << colour << "\"" << attributes(x, y, width, height);
  end_element("rect", tip);
}

void Svg::text(double x, double base, const std::string& what, const Look& look, Anchor anchor) {
  out_ << "<text class=\"" << look << "\" x=\"" << svg_number(x) << "\" y=\"" << svg_number(base) << "\""
       << (anchor == Anchor::kMiddle ? " text-anchor=\"middle\""
           : anchor == Anchor::kEnd  ? " text-anchor=\"end\""
                                     : "")
       << ">" << xml_escaped(what) << "</text>\n";
}

void Svg::text_on(const std::string& colour, double x, double base, const std::string& what) {
  // Equal contrast to black and to white: (L + 0.05)^2 = 1.05 * 0.05 (WCAG 2.2, relative luminance).
  const bool black = luminance(colour) > 0.179;
  out_ << "<text fill=\"" << (black ? "#000000" : "#ffffff")
       << "\" text-anchor=\"middle\" pointer-events=\"none\" x=\"" << svg_number(x) << "\" y=\""
       << svg_number(base) << "\">" << xml_escaped(what) << "</text>\n";
}

void Svg::line(double x1, double y1, double x2, double y2, const Look& look) {
  out_ << "<line class=\"" << look << "\" x1=\"" << svg_number(x1) << "\" y1=\"" << svg_number(y1)
       << "\" x2=\"" << svg_number(x2) << "\" y2=\"" << svg_number(y2) << "\"/>\n";
}

void Svg::path(const std::string& data, const Look& look, const std::string& tip) {
  out_ << "<path class=\"" << look << "\" d=\"" << data << "\"";
  end_element("path", tip);
}

std::string Svg::element() const {
  const std::string width = svg_number(width_), height = svg_number(height_);
  return "<svg role=\"img\" width=\"" + width + "\" height=\"" + height + "\" viewBox=\"0 0 " + width + " " +
         height + "\">\n<title>" + xml_escaped(title_) + "</title>\n" + out_.str() + "</svg>\n";
}

std::string Svg::file() const {
  const std::string width = svg_number(width_), height = svg_number(height_);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"" + width + "\" height=\"" + height +
         "\" viewBox=\"0 0 " + width + " " + height +
         "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n<title>" + xml_escaped(title_) +
         "</title>\n<style>\n" + look_styles(false) +
         "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" + out_.str() + "</svg>\n";
}

}  // namespace pipewright
