#include "runtime/watch/file_tail.h"

#include <algorithm>
#include <fstream>
#include <system_error>

namespace pipewright {

bool FileTail::still_stands(std::istream& in) const {
  std::string there(last_.size(), '\0');
  in.seekg(read_ - static_cast<int64_t>(last_.size()));
  in.read(there.data(), static_cast<std::streamsize>(there.size()));
  return in && there == last_;
}

bool FileTail::look(const std::function<void()>& again,
                    const std::function<void(const std::string& line)>& take) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file_, error)) return false;
  std::ifstream in(file_, std::ios::binary);
  if (!in) return false;
  if (read_ > 0 && !still_stands(in)) {
    read_ = 0;
    last_.clear();
    again();
    in.clear();
  }
  in.seekg(read_);
  std::string bytes(static_cast<size_t>(kMostBytes), '\0');
  in.read(bytes.data(), kMostBytes);
  bytes.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  size_t begin = 0;
  for (size_t end; (end = bytes.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take(bytes.substr(begin, end - begin));
    last_ = bytes.substr(begin, end + 1 - begin);
  }
  read_ += static_cast<int64_t>(begin);
  return begin > 0 && static_cast<int64_t>(bytes.size()) == kMostBytes;
}

}  // namespace pipewright
