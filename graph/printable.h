// What a terminal and a log can show of a text that came from a file.
#pragma once

#include <string>

namespace pipewright {

/// Control characters but the end of a line are written \\xNN, and of a line of more than 2000 bytes the
/// middle is left out.
std::string printable(const std::string& text);

}  // namespace pipewright
