#include "runtime/data/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "graph/error.h"
#include "runtime/data/sets.h"

namespace pipewright {

TokenFile::TokenFile(SpecOptions& options, const std::string& split, int64_t reserved)
    : path_(options.string("file", "")), reserved_(reserved) {
  const std::string format = options.choice("format", "bytes", {"bytes", "uint16", "uint32"});
  bytes_ = format == "bytes" ? 1 : format == "uint16" ? 2 : 4;
  vocabulary_ = options.integer("vocabulary", bytes_ == 1 ? 256 + reserved : 0, 0, int64_t{1} << 31);
  const double held = options.number("held", 0.1, 0, 0.9);
  options.finish();
  if (path_.empty()) options.fail("file", "it is missing; expected file=FILE");
  if (vocabulary_ <= reserved) {
    options.fail("vocabulary", "it is missing; expected the number of tokens that " + format + " may name",
                 "Next: vocabulary=50257 for the tokens of GPT-2");
  }
  file_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer too
  struct stat about {};
  if (file_ < 0 || fstat(file_, &about) != 0) {
    throw InputError("data '" + options.spec().text() + "': " + path_ + ": " + std::strerror(errno),
                     "give the path of the file, as seen from the folder in which the program is started");
  }
  if (!S_ISREG(about.st_mode)) throw InputError(path_ + ": is no plain file; expected a file of tokens");
  if (about.st_size % bytes_ != 0) {
    throw InputError(
        path_ + ": has " + std::to_string(about.st_size) + " bytes, expected a multiple of " +
            std::to_string(bytes_),
        "format=" + format + " means tokens of that many bytes; a text is read with format=bytes");
  }
  const int64_t all = about.st_size / bytes_;
  const auto evaluated = static_cast<int64_t>(static_cast<double>(all) * held);
  const bool training = split == kTrainSplit;
  begin_ = training || evaluated == 0 ? 0 : all - evaluated;
  size_ = training ? all - evaluated : all - begin_;
}

TokenFile::~TokenFile() {
  if (file_ >= 0) close(file_);
}

void TokenFile::require(int64_t needed, const std::string& split, const SpecOptions& options) const {
  if (size_ >= needed) return;
  throw InputError("data '" + options.spec().text() + "': " + path_ + ": the split '" + split + "' has " +
                       std::to_string(size_) + " tokens, expected at least " + std::to_string(needed),
                   "give a longer file, a smaller tokens=, or another held= (the part kept for evaluation)");
}

void TokenFile::read(int64_t first, int64_t count, int64_t* into) const {
  PW_CHECK(0 <= first && first + count <= size_, first << " + " << count << " of " << size_);
  std::vector<unsigned char> raw(static_cast<size_t>(count * bytes_));
  const int64_t start = (begin_ + first) * bytes_;
  for (size_t done = 0; done < raw.size();) {
    const ssize_t got =
        pread(file_, raw.data() + done, raw.size() - done, start + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw RunError(path_ + ": " +
                     (got < 0 ? std::strerror(errno) : "has become shorter while it was read"));
    done += static_cast<size_t>(got);
  }
  for (int64_t i = 0; i < count; ++i) {
    int64_t token = 0;
    for (int64_t byte = bytes_ - 1; byte >= 0; --byte)
      token = token << 8 | raw[static_cast<size_t>(i * bytes_ + byte)];
    if (token >= vocabulary_ - reserved_) {
      throw RunError(path_ + ": token " + std::to_string(begin_ + first + i) + " is " +
                         std::to_string(token) + ", expected less than " +
                         std::to_string(vocabulary_ - reserved_),
                     "give the vocabulary= that the tokens were made with, and their format=");
    }
    into[i] = token;
  }
}

}  // namespace pipewright
