#include "graph/file_kind.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "graph/file_watch.h"
#include "graph/regular_file.h"

namespace pipewright {
namespace {

using namespace std::string_view_literals;

struct Magic {
  std::string_view begins;
  FileKind kind;
};
constexpr Magic kMagics[] = {{"version https://git-lfs"sv, FileKind::kGitLfsPointer},
                             {"<!DOCTYPE"sv, FileKind::kWebPage},
                             {"<!doctype"sv, FileKind::kWebPage},
                             {"<html"sv, FileKind::kWebPage},
                             {"\x89HDF\r\n\x1a\n"sv, FileKind::kHdf5},
                             {"GGUF"sv, FileKind::kGguf},
                             {"\x93NUMPY"sv, FileKind::kNumpy},
                             {"\x80\x02"sv, FileKind::kPickle},
                             {"\x80\x03"sv, FileKind::kPickle},
                             {"\x80\x04"sv, FileKind::kPickle},
                             {"\x80\x05"sv, FileKind::kPickle},
                             {"\x1f\x8b"sv, FileKind::kCompressed},
                             {"BZh"sv, FileKind::kCompressed},
                             {"\xfd"
                              "7zXZ"sv,
                              FileKind::kCompressed},
                             {"\x28\xb5\x2f\xfd"sv, FileKind::kCompressed}};

struct Ending {
  std::string_view ends;
  FileKind kind;
};
constexpr Ending kEndings[] = {{".onnx"sv, FileKind::kOnnx},
                               {".pb"sv, FileKind::kTensorFlow},
                               {".tflite"sv, FileKind::kTensorFlow},
                               {".pkl"sv, FileKind::kPickle},
                               {".pickle"sv, FileKind::kPickle}};

// Its directory, which has the names as they are, is at the end.
FileKind kind_of_zip(const RegularFile& file) {
  constexpr int64_t kTail = 1 << 20;
  const int64_t count = std::min(kTail, file.bytes());
  std::string tail(static_cast<size_t>(count), '\0');
  file.read(file.bytes() - count, tail.data(), count);
  const auto has = [&](const char* name) { return tail.find(name) != std::string::npos; };
  // Its samples may be a checkpoint within it.
  for (const char* name : {"archive_format", "_weights_config.json", "serialized_exported_program.json"})
    if (has(name)) return FileKind::kExportedProgram;
  if (has("data.pkl") || has("constants.pkl")) return FileKind::kTorchSave;
  return has(".npy") ? FileKind::kNumpy : FileKind::kZip;
}

bool is_safetensors(const std::string& head, int64_t size) {
  if (head.size() < 9 || head[8] != '{') return false;
  uint64_t header_bytes = 0;
  for (size_t i = 8; i-- > 0;) header_bytes = header_bytes << 8 | static_cast<unsigned char>(head[i]);
  return header_bytes <= static_cast<uint64_t>(size - 8);
}

}  // namespace

FileKind kind_of_file(const std::filesystem::path& file) {
  {
    const FileWatch watch(file);
    std::error_code ignored;
    if (std::filesystem::is_directory(file, ignored)) return FileKind::kFolder;
  }
  const RegularFile opened(file);
  if (opened.bytes() == 0) return FileKind::kEmpty;
  std::string head(static_cast<size_t>(std::min<int64_t>(opened.bytes(), 64)), '\0');
  opened.read(0, head.data(), static_cast<int64_t>(head.size()));
  if (head.starts_with("PK\x03\x04")) return kind_of_zip(opened);
  if (is_safetensors(head, opened.bytes())) return FileKind::kSafetensors;
  for (const Magic& magic : kMagics)
    if (head.starts_with(magic.begins)) return magic.kind;
  const std::string name = file.filename().string();
  for (const Ending& ending : kEndings)
    if (name.ends_with(ending.ends)) return ending.kind;
  return FileKind::kUnknown;
}

const char* words_of(FileKind kind) {
  switch (kind) {
    case FileKind::kUnknown:
      return "";
    case FileKind::kFolder:
      return "is a folder";
    case FileKind::kEmpty:
      return "is empty";
    case FileKind::kGitLfsPointer:
      return "is a Git LFS pointer: the file itself was not fetched";
    case FileKind::kWebPage:
      return "is a web page: whoever fetched it got an answer in the place of the file";
    case FileKind::kExportedProgram:
      return "is an exported program";
    case FileKind::kTorchSave:
      return "is a TorchScript file or a checkpoint of torch.save";
    case FileKind::kPickle:
      return "is a pickle";
    case FileKind::kSafetensors:
      return "is a safetensors file: weights without a program";
    case FileKind::kOnnx:
      return "is an ONNX file";
    case FileKind::kHdf5:
      return "is an HDF5 file, as Keras writes";
    case FileKind::kGguf:
      return "is a GGUF file";
    case FileKind::kNumpy:
      return "is a file of NumPy's";
    case FileKind::kTensorFlow:
      return "is a file of TensorFlow's";
    case FileKind::kZip:
      return "is a zip archive of something else";
    case FileKind::kCompressed:
      return "is a compressed file";
  }
  return "";
}

}  // namespace pipewright
