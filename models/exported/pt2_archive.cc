#include "models/exported/pt2_archive.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/limits.h"
#include "models/exported/pt2_types.h"
#include "models/exported/zip_file.h"
#include "models/run/scalar_types.h"

namespace pipewright {

namespace {

constexpr const char* kExportAsArchive =
    "Export again with PyTorch 2.9 or later: scripts/export_model.py, or torch.export.export(model.train(), "
    "inputs) "
    "and torch.export.save.";

/// Is it a file's name, and nothing that leads out of its folder?
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

/// Do different elements lie at different places? `strides` are positive; an extent of 1 has any.
bool elements_are_apart(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, extent
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1) dimensions.emplace_back(strides[i], shape[i]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t reach = 0;  // of the last element along the dimensions seen; it lies in the record, so it fits
  for (const auto& [stride, extent] : dimensions) {
    if (stride <= reach) return false;
    reach += (extent - 1) * stride;
  }
  return true;
}

}  // namespace

void demand_exported_program(const std::filesystem::path& file, FileKind kind) {
  if (kind == FileKind::kExportedProgram) return;
  const std::string words = words_of(kind);
  std::string remedy = kExportAsArchive;
  if (kind == FileKind::kGitLfsPointer) remedy = "git lfs pull fetches the file.";
  if (kind == FileKind::kSafetensors) {
    remedy =
        "Give the program that they are for, or a built-in model, as --model, and this file as "
        "--initial-weights. " +
        remedy;
  }
  throw InputError(file.string() + ": " + (words.empty() ? "is" : words + ",") +
                       (words.empty() ? " no" : " not an") + " exported program",
                   remedy);
}

namespace {

// Of what is no program it says more than that its archive cannot be read.
const std::filesystem::path& demanded(const std::filesystem::path& file) {
  const FileKind kind = kind_of_file(file);
  // What may be a damaged one is looked at closely.
  if (kind != FileKind::kUnknown && kind != FileKind::kZip && kind != FileKind::kEmpty)
    demand_exported_program(file, kind);
  return file;
}

}  // namespace

Pt2Archive::Pt2Archive(std::filesystem::path file) : file_(std::move(file)), zip_(demanded(file_)) {
  const auto has = [&](const std::string& record) { return zip_.find(record) != nullptr; };
  if (has("serialized_exported_program.json")) {
    throw InputError(
        file_.string() + ": has the layout of PyTorch 2.8 and earlier, which keeps weights as pickles",
        kExportAsArchive);
  }
  if (!has("archive_format") || text("archive_format") != "pt2")
    throw InputError(file_.string() + ": has no record 'archive_format' that says 'pt2'", kExportAsArchive);
  const std::string version = has("archive_version") ? text("archive_version") : "";
  if (version != "0") {
    throw InputError(file_.string() + ": archive_version: got " + in_quotes(version) + ", expected \"0\"",
                     "This version of Pipewright reads what PyTorch 2.9 to 2.11 write.");
  }
  if (has("byteorder") && text("byteorder") != "little")
    throw InputError(file_.string() + ": byteorder: got " + in_quotes(text("byteorder")) +
                     ", expected \"little\"");
  const std::string folder = "models/", suffix = ".json";
  for (const auto& [record, offset, bytes, checksum] : zip_.members()) {
    if (!record.starts_with(folder) || !record.ends_with(suffix)) continue;
    if (!name_.empty()) {
      throw InputError(file_.string() + ": holds several programs, '" + name_ + "' and more; expected one",
                       kExportAsArchive);
    }
    name_ = record.substr(folder.size(), record.size() - folder.size() - suffix.size());
  }
  if (name_.empty())
    throw InputError(file_.string() + ": has no record 'models/NAME.json'", kExportAsArchive);
}

std::string Pt2Archive::program_where() const { return file_.string() + ": models/" + name_ + ".json"; }

Json Pt2Archive::program() const { return parse_json(text("models/" + name_ + ".json"), program_where()); }

const ZipFile::Member& Pt2Archive::record(const std::string& name) const {
  const ZipFile::Member* found = zip_.find(name);
  if (found == nullptr) throw InputError(file_.string() + ": has no record '" + name + "'", kExportAsArchive);
  return *found;
}

std::string Pt2Archive::text(const std::string& name) const {
  const ZipFile::Member& member = record(name);
  std::string bytes(static_cast<size_t>(member.bytes), '\0');
  zip_.read(member, bytes.data());
  return bytes;
}

std::map<std::string, StoredTensor> Pt2Archive::weights() const {
  return tensors(kSavedRecords, name_ + "_weights_config.json");
}

std::map<std::string, StoredTensor> Pt2Archive::constants() const {
  return tensors("data/constants/", name_ + "_constants_config.json");
}

std::map<std::string, StoredTensor> Pt2Archive::tensors(const std::string& folder,
                                                        const std::string& config) const {
  const std::string where = file_.string() + ": " + folder + config;
  const Json json = parse_json(text(folder + config), where);
  JsonReader reader(json, where);
  std::map<std::string, StoredTensor> tensors;
  for (auto& [name, payload] : reader.entries("config")) {
    if (payload.boolean("use_pickle")) {
      payload.fail(
          "use_pickle", "the tensor is a pickle, which may hold any program; pickles are never opened",
          "It is an object or a tensor of a subclass. Export a model whose weights are plain tensors.");
    }
    const std::string file = payload.string("path_name");
    if (!is_plain_name(file)) payload.fail("path_name", "got " + in_quotes(file) + ", expected a plain name");
    const Pt2TensorMeta meta = pt2_tensor_meta(payload.object("tensor_meta"), {});
    StoredTensor tensor;
    tensor.record = folder + file;
    tensor.record_bytes = record(tensor.record).bytes;
    tensor.type = meta.type;
    tensor.strides = meta.strides;
    tensor.storage_offset = meta.storage_offset;
    // The last element, counted from the start of the storage.
    int64_t last = tensor.storage_offset;
    bool fits = true;
    for (size_t i = 0; i < tensor.strides.size(); ++i) {
      int64_t reach = 0;
      const int64_t steps = std::max<int64_t>(tensor.type.shape[i] - 1, 0);
      fits = fits && !__builtin_mul_overflow(steps, tensor.strides[i], &reach) &&
             !__builtin_add_overflow(last, reach, &last);
    }
    const int64_t held = tensor.record_bytes / dtype_bytes(tensor.type.dtype);
    if (!fits || (tensor.type.elements() > 0 && last >= held)) {
      payload.fail("tensor_meta", "sizes, strides and offset reach beyond the " +
                                      std::to_string(tensor.record_bytes) + " bytes of record '" +
                                      tensor.record + "'");
    }
    // Made of a few numbers that repeat, a tensor may be larger than all of the file.
    if (tensor.type.elements() > held) {
      payload.fail("tensor_meta", "more elements than record '" + tensor.record +
                                      "' holds; expected a tensor that "
                                      "does not repeat them");
    }
    if (tensor.type.elements() > 0 && !elements_are_apart(tensor.type.shape, tensor.strides)) {
      payload.fail("tensor_meta", "strides that put several elements at one place; expected each at its own");
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

void Pt2Archive::require_all_used(const std::map<std::string, StoredTensor>& weights) const {
  const std::string folder = kSavedRecords;
  std::set<std::string> used = {folder + name_ + "_weights_config.json"};
  for (const auto& [name, tensor] : weights) used.insert(tensor.record);
  for (const ZipFile::Member& member : zip_.members()) {
    if (!member.name.starts_with(folder) || used.count(member.name) != 0) continue;
    throw InputError(
        file_.string() + ": no tensor is stored as record '" + member.name + "', which is there",
        "The table of the tensors is damaged: one of them names another's record. Export again.");
  }
}

at::Tensor Pt2Archive::read(const StoredTensor& stored) const {
  const at::ScalarType dtype = scalar_type_of(stored.type.dtype);
  const int64_t width = dtype_bytes(stored.type.dtype);
  // Bytes beyond the last whole element belong to no tensor, but are read: the checksum is of all.
  const at::Tensor storage = at::empty({(stored.record_bytes + width - 1) / width}, at::TensorOptions(dtype));
  const ZipFile::Member& member = record(stored.record);
  PW_CHECK_EQ(member.bytes, stored.record_bytes);
  zip_.read(member, storage.mutable_data_ptr());
  if (dtype == at::kBool) {
    const auto* begin = static_cast<const uint8_t*>(storage.const_data_ptr());
    if (std::any_of(begin, begin + stored.record_bytes, [](uint8_t value) { return value > 1; }))
      throw InputError(file_.string() + ": record '" + stored.record +
                       "' has a truth value that is neither 0 nor 1");
  }
  const at::Tensor tensor = storage.as_strided(stored.type.shape, stored.strides, stored.storage_offset);
  const bool whole = tensor.numel() == storage.numel() && tensor.is_contiguous();
  return whole ? tensor : tensor.clone(at::MemoryFormat::Contiguous);  // the rest of the storage goes
}

}  // namespace pipewright
