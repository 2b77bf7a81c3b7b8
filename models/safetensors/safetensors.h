// Tensors in safetensors files, as PyTorch people exchange them: strict reader, deterministic writer.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/regular_file.h"
#include "models/run/scalar_types.h"
#include "models/safetensors/safetensors_header.h"

namespace pipewright {

/// One file: its header is read and checked (safetensors_header.h), tensors are read when asked for, so a
/// rank loads no more than its own. They are copied into memory of their own rather than mapped: kernels want
/// them aligned to 64 bytes (docs/gotchas.md), and a file that is cut while it is open must be an error, not
/// a signal. One thread at a time.
class SafetensorsFile {
 public:
  /// InputError: cannot be read, or is no whole, correct safetensors file.
  explicit SafetensorsFile(std::filesystem::path file);
  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::filesystem::path& path() const { return file_; }
  const std::vector<SafetensorsEntry>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Null if the file has no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  /// Contiguous, on the CPU. InputError if the file was cut meanwhile, or holds a truth value that is neither
  /// 0 nor 1.
  at::Tensor read(const SafetensorsEntry& entry) const;

 private:
  std::filesystem::path file_;
  RegularFile bytes_;
  SafetensorsHeader header_;
  std::map<std::string_view, size_t> positions_;
};

/// The tensors of a file, or of the files that an index `*.safetensors.index.json` lists.
class TensorFiles {
 public:
  /// InputError: as SafetensorsFile; an index that is not {"metadata": ..., "weight_map": {tensor: file}},
  /// whose files are not plain names in its own folder, or which disagrees with what they hold.
  explicit TensorFiles(const std::filesystem::path& file);

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const;  ///< sorted
  /// Null if there is no such tensor.
  const SafetensorsEntry* find(const std::string& name) const;
  at::Tensor read(const std::string& name) const;  ///< that find() finds
  /// Each tensor is found by its new name from here on; one whose new name is "" is not any more. InputError
  /// if two have one.
  void rename(const std::function<std::string(const std::string&)>& new_name);
  /// The file that holds it.
  const std::filesystem::path& file_of(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, const SafetensorsEntry*>> tensors_;
};

/// at::ScalarType of the format's dtype and back. InputError for one that the other side has not.
at::ScalarType scalar_type_of_safetensors(const std::string& dtype);
std::string safetensors_dtype_of(at::ScalarType type);

/// A tensor that is made when its turn comes to be written, and of which no more than that one is held.
struct TensorSource {
  std::string name;
  std::string dtype;  ///< the format's name
  std::vector<int64_t> shape;
  std::function<at::Tensor()> make;  ///< dense, of that dtype and shape; on any device

  static TensorSource of(std::string name, const at::Tensor& tensor);
  /// The tensor of a file, which outlives it.
  static TensorSource in(const SafetensorsFile& file, const SafetensorsEntry& entry);
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What was written, for a manifest.
struct WrittenFile {
  int64_t bytes = 0;
  std::string digest;  ///< digest_of() its bytes
};

/// Equal tensors and metadata give equal bytes. Tensors on the CPU, dense, names unique; they are written by
/// falling element size, then by name, as the reference implementation does. Whole or not at all
/// (AtomicFile, with what `instead` means).
WrittenFile write_safetensors(const std::filesystem::path& file, NamedTensors tensors,
                              const std::map<std::string, std::string>& metadata,
                              const std::filesystem::path& instead = {});
WrittenFile write_safetensors(const std::filesystem::path& file, std::vector<TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata,
                              const std::filesystem::path& instead = {});

}  // namespace pipewright
