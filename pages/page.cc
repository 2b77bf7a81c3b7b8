#include "pages/page.h"

#include <cctype>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/xml.h"

namespace pipewright {
namespace {

constexpr const char* kStyle =
    "body{font:16px/1.5 Helvetica,Arial,sans-serif;color:var(--ink);background:var(--paper);margin:2em auto;"
    "max-width:76em;padding:0 1em}\n"
    "h1{font-size:1.6em;line-height:1.25}h2{font-size:1.25em;margin-top:2em}\n"
    "h1,p,li,figcaption{overflow-wrap:anywhere}.lead{font-size:1.15em}\n"
    "table{border-collapse:collapse}caption,figcaption{text-align:left;font-weight:bold;padding:.3em 0}\n"
    "th,td{border-bottom:1px solid var(--rule);padding:.3em .8em;text-align:right;white-space:nowrap;"
    "font-variant-numeric:tabular-nums}\n"
    "th.left,td.left{text-align:left}thead th{border-bottom:2px solid var(--rule)}tbody "
    "th{font-weight:normal}\n"
    "tbody tr:hover{background:var(--lane)}\n"
    ".scroll{overflow-x:auto;margin:1em 0}figure{margin:1em 0}svg{font-size:12px;max-width:none}\n"
    "code{background:var(--lane);padding:.1em .3em;overflow-wrap:anywhere}\n"
    ":focus-visible{outline:3px solid var(--edge);outline-offset:2px}\n"
    "input[type=range]{width:min(100%,36em)}\n"
    "@media print{body{max-width:none;margin:0}.scroll{overflow:visible}svg{max-width:100%;height:auto}}\n";

}  // namespace

void Page::lead(const std::string& sentences) {
  out_ << "<p class=\"lead\">" << xml_escaped(sentences) << "</p>\n";
}
void Page::heading(const std::string& text) { out_ << "<h2>" << xml_escaped(text) << "</h2>\n"; }
void Page::paragraph(const std::string& text) { out_ << "<p>" << xml_escaped(text) << "</p>\n"; }
void Page::words(const std::string& lines) {
  std::istringstream all(lines);
  std::string line;
  if (std::getline(all, line)) lead(line);
  while (std::getline(all, line)) paragraph(line);
}
void Page::command(const std::string& text) { out_ << "<p><code>" << xml_escaped(text) << "</code></p>\n"; }

void Page::list(const std::vector<std::string>& items) {
  out_ << "<ul>\n";
  for (const std::string& item : items) out_ << "<li>" << xml_escaped(item) << "</li>\n";
  out_ << "</ul>\n";
}

void Page::links(const std::vector<std::pair<std::string, std::string>>& items) {
  out_ << "<ul>\n";
  for (const auto& [text, address] : items)
    out_ << "<li>"
         << (address.empty() ? xml_escaped(text)
                             : "<a href=\"" + xml_escaped(address) + "\">" + xml_escaped(text) + "</a>")
         << "</li>\n";
  out_ << "</ul>\n";
}

void Page::table(const TextTable& table, const std::string& caption) {
  // A box that scrolls takes the focus, or a keyboard could not move it.
  out_ << "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" << xml_escaped(caption)
       << "\"><table><caption>" << xml_escaped(caption) << "</caption>\n<thead><tr>";
  const auto side = [&](size_t column) {
    return table.columns()[column].side == TableColumn::Side::kLeft ? " class=\"left\"" : "";
  };
  for (size_t i = 0; i < table.columns().size(); ++i)
    out_ << "<th scope=\"col\"" << side(i) << ">" << xml_escaped(table.columns()[i].head) << "</th>";
  out_ << "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows()) {
    out_ << "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      out_ << (i == 0 ? "<th scope=\"row\"" : "<td") << side(i) << ">" << xml_escaped(row[i])
           << (i == 0 ? "</th>" : "</td>");
    out_ << "</tr>\n";
  }
  out_ << "</tbody></table></div>\n";
}

void Page::figure(const Svg& drawing, const std::string& caption) {
  out_ << "<figure><figcaption>" << xml_escaped(caption)
       << "</figcaption>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\""
       << xml_escaped(caption) << "\">\n"
       << drawing.element() << "</div></figure>\n";
}

void Page::moving(const std::string& html, const std::string& script) {
  out_ << html;
  scripts_ += script;
}

std::string Page::html() const {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         // A browser asks for an icon otherwise.
         "<link rel=\"icon\" href=\"data:,\">\n<title>" +
         xml_escaped(title_) + "</title>\n<style>\n" + look_styles(true) + kStyle +
         "</style>\n</head>\n<body>\n<main>\n<h1>" + xml_escaped(title_) + "</h1>\n" + out_.str() +
         "</main>\n" + (scripts_.empty() ? "" : "<script>\n" + scripts_ + "</script>\n") +
         "</body>\n</html>\n";
}

std::string relative_address(const std::filesystem::path& page, const std::filesystem::path& folder,
                             const std::string& file) {
  const auto folder_of = [](const std::filesystem::path& inside) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(inside)).parent_path();
  };
  const std::filesystem::path from = folder_of(page), to = folder_of(folder / file);
  if (from != to && from != to.parent_path()) return "";
  const std::string path = (from == to ? "" : to.filename().string() + "/") + file;
  std::string address;
  for (const char c : path) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("-._~/", c) != nullptr) {
      address += c;
    } else {  // RFC 3986, 2.1
      char text[4];
      std::snprintf(text, sizeof text, "%%%02X", static_cast<unsigned char>(c));
      address += text;
    }
  }
  return address;
}

void check_page_name(const std::string& option, const std::filesystem::path& file) {
  if (file.extension() == ".html") return;
  throw InputError(option + ": got " + in_quotes(file.string()) + "; expected a name that ends in .html");
}

void write_page(const std::filesystem::path& file, const std::string& html) {
  write_file(file, html);
  std::cerr << "wrote " << file.string() << "\n";
}

}  // namespace pipewright
