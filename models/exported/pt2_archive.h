// The file that torch.export.save() writes: a zip of JSON texts and raw storages. Nothing in it is executed;
// pickles are refused, or never opened.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "graph/file_kind.h"
#include "graph/json.h"
#include "models/definition/model.h"
#include "models/exported/zip_file.h"

namespace pipewright {

/// Records of parameters and persistent buffers: what a state_dict() has.
inline constexpr const char* kSavedRecords = "data/weights/";

/// InputError that says what the file is instead, and how to make a program of it.
void demand_exported_program(const std::filesystem::path& file, FileKind kind);

/// The layout of PyTorch 2.9 and later ("archive_version" 0). Reads of one archive may come from several
/// threads.
class Pt2Archive {
 public:
  /// InputError: cannot be read, no zip, of an older layout or a newer version, or not of exactly one
  /// program.
  explicit Pt2Archive(std::filesystem::path file);

  const std::filesystem::path& path() const { return file_; }
  /// The exported program, "models/NAME.json".
  Json program() const;
  /// For messages about program(): the file and the record.
  std::string program_where() const;
  /// Parameters and persistent buffers; constants and other buffers. By their full names. InputError: a
  /// pickled tensor, a record that is missing or whose name leads elsewhere, a tensor
  /// that does not lie within its storage or has several elements at one place.
  std::map<std::string, StoredTensor> weights() const;
  std::map<std::string, StoredTensor> constants() const;

  /// InputError if the archive has a record of a weight that none of `weights` is stored as. Of two tensors
  /// of one record, either they are tied, and no record is left over, or one has lost its own.
  void require_all_used(const std::map<std::string, StoredTensor>& weights) const;

  /// Contiguous, on the CPU, in memory of its own (aligned to 64 bytes; docs/gotchas.md). InputError if the
  /// record is damaged: its checksum is compared.
  at::Tensor read(const StoredTensor& tensor) const;

 private:
  const ZipFile::Member& record(const std::string& name) const;
  std::string text(const std::string& name) const;
  std::map<std::string, StoredTensor> tensors(const std::string& folder, const std::string& config) const;

  std::filesystem::path file_;
  std::string name_;  ///< of the program
  ZipFile zip_;
};

}  // namespace pipewright
