#include "graph/text_table.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr int64_t kBetween = 2;  // blanks between columns
const std::string kCut = "...";

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }

std::string cut_to(const std::string& text, int64_t width) {
  if (characters_of(text) <= width) return text;
  int64_t left = std::max<int64_t>(width - static_cast<int64_t>(kCut.size()), 0);
  size_t end = 0;
  for (; end < text.size(); ++end) {
    if (begins_character(text[end]) && left-- == 0) break;
  }
  return text.substr(0, end) + kCut;
}

/// Which columns are shown, and how wide.
struct Layout {
  std::vector<size_t> shown;
  std::vector<int64_t> width;  ///< by column
};

Layout layout_of(const std::vector<TableColumn>& columns, const std::vector<int64_t>& full, int64_t width) {
  Layout layout;
  layout.shown.resize(columns.size());
  std::iota(layout.shown.begin(), layout.shown.end(), 0);
  layout.width = full;
  const auto room = [&] {
    int64_t used = -kBetween;
    for (const size_t c : layout.shown) used += layout.width[c] + kBetween;
    return width - used;
  };
  if (width == kAnyWidth || room() >= 0) return layout;
  for (size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].least > 0) layout.width[c] = std::min(full[c], columns[c].least);
  }
  while (room() < 0) {
    const auto first = std::max_element(layout.shown.begin(), layout.shown.end(), [&](size_t a, size_t b) {
      return columns[a].goes < columns[b].goes;
    });
    if (first == layout.shown.end() || columns[*first].goes == 0) break;
    layout.shown.erase(first);
  }
  for (const size_t c : layout.shown)
    layout.width[c] += std::clamp<int64_t>(room(), 0, full[c] - layout.width[c]);
  return layout;
}

}  // namespace

int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), begins_character);
}

void TextTable::add(std::vector<std::string> row) {
  PW_CHECK_EQ(row.size(), columns_.size());
  rows_.push_back(std::move(row));
}

std::string TextTable::text(int64_t width) const {
  std::vector<int64_t> full;
  for (size_t c = 0; c < columns_.size(); ++c) {
    full.push_back(characters_of(columns_[c].head));
    for (const auto& row : rows_) full[c] = std::max(full[c], characters_of(row[c]));
  }
  const Layout layout = layout_of(columns_, full, width);
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (const size_t c : layout.shown) {
      const std::string cell = cut_to(cell_of(c), layout.width[c]);
      const std::string blanks(static_cast<size_t>(layout.width[c] - characters_of(cell)), ' ');
      if (c != layout.shown.front()) line += std::string(kBetween, ' ');
      line += columns_[c].side == TableColumn::Side::kLeft ? cell + blanks : blanks + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t c) { return columns_[c].head; });
  for (const auto& row : rows_) add_line([&](size_t c) { return row[c]; });
  std::string missing;
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (std::find(layout.shown.begin(), layout.shown.end(), c) != layout.shown.end()) continue;
    missing += (missing.empty() ? "" : ", ") + columns_[c].head;
  }
  if (!missing.empty()) text += wrapped("(--wide shows also: " + missing + ")", width, 1) + "\n";
  return text;
}

std::string TextTable::markdown() const {
  std::string text = "|";
  const auto add_cell = [&](const std::string& cell) {
    text += ' ';
    for (const char c : cell) text += c == '|' ? std::string("\\|") : std::string(1, c);
    text += " |";
  };
  for (const TableColumn& column : columns_) add_cell(column.head);
  text += "\n|";
  for (const TableColumn& column : columns_)
    text += column.side == TableColumn::Side::kLeft ? " --- |" : " ---: |";
  for (const auto& row : rows_) {
    text += "\n|";
    for (const std::string& cell : row) add_cell(cell);
  }
  return text + "\n";
}

std::string wrapped(const std::string& text, int64_t width, int64_t indent) {
  if (width == kAnyWidth) return text;
  std::string out;
  int64_t column = 0;
  for (size_t begin = 0; begin < text.size();) {
    if (text[begin] == '\n') {
      out += text[begin++];
      column = 0;
      continue;
    }
    // The blanks before a word, and the word.
    size_t word = text.find_first_not_of(' ', begin);
    if (word == std::string::npos) break;
    const size_t end = std::min(text.find_first_of(" \n", word), text.size());
    const int64_t length = characters_of(text.substr(word, end - word));
    const auto blanks = static_cast<int64_t>(word - begin);
    if (length > 0 && column > 0 && column + blanks + length > width) {
      out += "\n" + std::string(static_cast<size_t>(indent), ' ');
      column = indent;
      begin = word;
    }
    out += text.substr(begin, end - begin);
    column += static_cast<int64_t>(word - begin) + length;
    begin = end;
  }
  return out;
}

}  // namespace pipewright
