// Drawings for people: SVG inside a page, in light and dark, or as a file of its own.
#pragma once

#include <sstream>
#include <string>

namespace pipewright {

/// How what is drawn looks: a word of the style sheet, so that a page can show it in light and dark.
///   c0 .. c7   areas, told apart by lightness too;  l0 .. l7  the same as lines
///   ink, muted text;  head  bold text;  grid  thin lines;  lane, box  quiet areas;  mark  a dashed line
using Look = std::string;
/// Of the n-th of several things that are told apart: "c3"; they repeat after eight, lines dashed.
Look area_look(size_t n);
Look line_look(size_t n);

/// The style sheet of all looks, in light, and with `dark` also in dark where the reader's screen asks for
/// it.
std::string look_styles(bool dark);

/// One drawing. Lengths are CSS pixels, y goes down. All text is escaped here.
class Svg {
 public:
  enum class Anchor { kStart, kMiddle, kEnd };

  /// `title` is what a screen reader says.
  Svg(double width, double height, std::string title);

  /// `tip` shows when the pointer rests on it; "": nothing.
  void area(double x, double y, double width, double height, const Look& look, const std::string& tip = "");
  /// The same in a colour of its own, "#rrggbb", in light and dark alike.
  void coloured(double x, double y, double width, double height, const std::string& colour,
                const std::string& tip = "");
  void text(double x, double base, const std::string& what, const Look& look = "ink",
            Anchor anchor = Anchor::kStart);
  /// On an area of `colour`: black or white, whichever is read better.
  void text_on(const std::string& colour, double x, double base, const std::string& what);
  void line(double x1, double y1, double x2, double y2, const Look& look = "grid");
  /// `data` is an SVG path.
  void path(const std::string& data, const Look& look, const std::string& tip = "");

  double width() const { return width_; }
  double height() const { return height_; }
  /// For a page that has look_styles().
  std::string element() const;
  /// Self-contained, on white.
  std::string file() const;

 private:
  void end_element(const std::string& name, const std::string& tip);

  double width_, height_;
  std::string title_;
  std::ostringstream out_;
};

/// "12.3": one decimal, none if it is 0; how all lengths are written.
std::string svg_number(double value);
/// 1, 2 or 5 times a power of ten, the least such that is at least `least` (> 0).
double round_step(double least);
/// About how wide a text of the drawings' face is, a little more rather than less.
double text_width(const std::string& text);

}  // namespace pipewright
