// Text inside SVG and HTML.
#pragma once

#include <string>

namespace pipewright {

/// With & < > " as entities; control characters, which XML does not allow even escaped, become blanks.
std::string xml_escaped(const std::string& text);

}  // namespace pipewright
