// A page for people: one HTML file that loads nothing, reads without scripts, in light and dark, on a phone
// and on a wall, by keyboard and aloud, and prints.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "graph/text_table.h"
#include "pages/svg.h"

namespace pipewright {

/// Parts come in the order in which they are added. All text is escaped here.
class Page {
 public:
  explicit Page(std::string title) : title_(std::move(title)) {}

  /// What the page says in one or two sentences; first.
  void lead(const std::string& sentences);
  void heading(const std::string& text);
  void paragraph(const std::string& text);
  /// A command that can be typed.
  void command(const std::string& text);
  void list(const std::vector<std::string>& items);
  /// The first column is the rows' heads.
  void table(const TextTable& table, const std::string& caption);
  /// Scrolls in its own box where the page is too narrow.
  void figure(const Svg& drawing, const std::string& caption);
  /// What moves with a script: `html` is there in full without it, and `script` finds it.
  void moving(const std::string& html, const std::string& script);

  std::string html() const;

 private:
  std::string title_;
  std::ostringstream out_;
  std::string scripts_;
};

}  // namespace pipewright
