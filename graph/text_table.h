// Tables and sentences for people, as wide as where they are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// Columns on a line; as many as one likes.
constexpr int64_t kAnyWidth = 0;

struct TableColumn {
  std::string head;
  enum class Side { kLeft, kRight } side = Side::kRight;  ///< names stand left, numbers right
  /// Where lines are too wide, columns go in order of this, the greatest first; 0 = it always stays.
  int goes = 0;
  /// Where lines are still too wide, its cells are cut to no less than this ("features.0 .. cl..."); 0 =
  /// never.
  int64_t least = 0;
};

/// Rows of cells, in columns as wide as their widest cell.
class TextTable {
 public:
  explicit TextTable(std::vector<TableColumn> columns) : columns_{std::move(columns)} {}
  /// One cell for each column.
  void add(std::vector<std::string> row);

  const std::vector<TableColumn>& columns() const { return columns_; }
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }

  /// Lines of at most `width` characters, if what always stays fits: cells are cut first, as far as they may
  /// be, then columns go, then what was cut gets back the room that is left. A last line names the columns
  /// that are not shown.
  std::string text(int64_t width = kAnyWidth) const;
  /// The same as Markdown, whole.
  std::string markdown() const;

 private:
  std::vector<TableColumn> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Lines broken at blanks to at most `width` characters; a word that is longer stays whole. All lines but the
/// first begin with `indent` blanks. Breaks that `text` has stay.
std::string wrapped(const std::string& text, int64_t width, int64_t indent = 0);

/// Characters, not bytes, of UTF-8; each counts as one column.
int64_t characters_of(const std::string& text);

}  // namespace pipewright
