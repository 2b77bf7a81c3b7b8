#include "runtime/watch/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "graph/command_line.h"
#include "graph/text_table.h"

namespace pipewright {
namespace {

constexpr const char* kToEndOfLine = "\033[K";
constexpr const char* kToEndOfScreen = "\033[J";
constexpr const char* kPlain = "\033[0m";

std::string up(int64_t lines) { return lines > 0 ? "\033[" + std::to_string(lines) + "A" : ""; }

const char* code_of(Emphasis emphasis) {
  switch (emphasis) {
    case Emphasis::kNone:
      return "";
    case Emphasis::kHeading:
      return "\033[1m";
    case Emphasis::kGood:
      return "\033[32m";
    case Emphasis::kWarning:
      return "\033[33m";
    case Emphasis::kBad:
      return "\033[31m";
  }
  return "";
}

}  // namespace

bool Terminal::is_one(int descriptor) {
  const char* const kind = std::getenv("TERM");
  return isatty(descriptor) != 0 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

bool Terminal::wants_colour() {
  const char* const no = std::getenv("NO_COLOR");
  return no == nullptr || *no == '\0';
}

int64_t Terminal::width() const { return width_of(descriptor_); }

int64_t Terminal::height() const {
  constexpr int64_t kUsual = 24;
  winsize size{};
  return ioctl(descriptor_, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 ? kUsual : size.ws_row;
}

// To the first of the lines: a window that was made narrower has broken them.
std::string Terminal::back() const {
  const int64_t width = std::max<int64_t>(1, this->width());
  int64_t rows = 0;
  for (const ViewLine& line : lines_)
    rows += std::max<int64_t>(1, (characters_of(line.text) + width - 1) / width);
  return "\r" + up(rows);
}

std::string Terminal::drawn() const {
  std::string text;
  for (const ViewLine& line : lines_) {
    const std::string code = colour_ ? code_of(line.emphasis) : "";
    text += code + line.text + (code.empty() ? "" : kPlain) + kToEndOfLine + "\n";
  }
  return text + kToEndOfScreen;
}

bool Terminal::draw(const std::vector<ViewLine>& lines) {
  const std::string before = back();
  lines_ = lines;
  return write(before + drawn());
}

bool Terminal::print_above(std::string_view text) {
  waiting_ += text;
  const size_t end = waiting_.rfind('\n');
  if (end == std::string::npos) return true;
  std::string whole = back() + kToEndOfScreen + waiting_.substr(0, end + 1);
  waiting_.erase(0, end + 1);
  return write(whole + drawn());
}

// At once, so that no half of it is seen.
bool Terminal::write(const std::string& bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

}  // namespace pipewright
