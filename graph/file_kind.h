// What a file is that was given for something else: by its first bytes, of a zip archive by its members'
// names, and last by its own name. Nothing of it is opened further.
#pragma once

#include <filesystem>

namespace pipewright {

enum class FileKind {
  kUnknown,
  kFolder,
  kEmpty,
  kGitLfsPointer,
  kWebPage,
  kExportedProgram,
  kTorchSave,  ///< TorchScript too
  kPickle,     ///< torch.save's before PyTorch 1.6, joblib's and plain ones
  kSafetensors,
  kOnnx,
  kHdf5,
  kGguf,
  kNumpy,
  kTensorFlow,
  kZip,
  kCompressed  ///< gzip, bzip2, xz, zstd
};

/// InputError where the file cannot be opened.
FileKind kind_of_file(const std::filesystem::path& file);

/// "is a Git LFS pointer: the file itself was not fetched"; "" for kUnknown.
const char* words_of(FileKind kind);

}  // namespace pipewright
