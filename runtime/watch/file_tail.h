// A file that somebody appends lines to, or replaces, or cuts: what is new in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace pipewright {

class FileTail {
 public:
  explicit FileTail(std::filesystem::path file) : file_(std::move(file)) {}

  /// Calls `take` with each whole line that was added since the last call, without its end; `again` before
  /// the first, if the file is not the one that was read with more behind it: all of it is then read anew.
  /// Reads kMostBytes at a time; true: there is more. Nothing where there is no such file, or none that can
  /// be read.
  bool look(const std::function<void()>& again, const std::function<void(const std::string& line)>& take);

  static constexpr int64_t kMostBytes = 4 << 20;

 private:
  bool still_stands(std::istream& in) const;

  const std::filesystem::path file_;
  int64_t read_ = 0;  // bytes, whole lines
  std::string last_;  // the last line of them, with its end: whoever cuts the file and goes on writes another
};

}  // namespace pipewright
