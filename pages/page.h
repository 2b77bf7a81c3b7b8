// A page for people: one HTML file that loads nothing, reads without scripts, in light and dark, on a phone
// and on a wall, by keyboard and aloud, and prints.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
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
  /// What a command prints above its tables: the first line is the lead, the others are paragraphs.
  void words(const std::string& lines);
  /// A command that can be typed.
  void command(const std::string& text);
  void list(const std::vector<std::string>& items);
  /// What each says, and where it leads: an address, or a path from the page's folder (relative_address());
  /// "": nowhere. Nothing of it is loaded before somebody follows it.
  void links(const std::vector<std::pair<std::string, std::string>>& items);
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

/// The address of `file` in `folder` for a page that lies in the folder or beside it, so that both can be
/// moved together; "" for any other page.
std::string relative_address(const std::filesystem::path& page, const std::filesystem::path& folder,
                             const std::string& file);

/// InputError for `option` unless the name ends in .html.
void check_page_name(const std::string& option, const std::filesystem::path& file);

/// Says on standard error what was written.
void write_page(const std::filesystem::path& file, const std::string& html);

}  // namespace pipewright
