#include "models/pt2_archive.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>

#include "graph/error.h"
#include "graph/limits.h"
#include "models/initialise.h"
#include "models/pt2_types.h"

namespace pipewright {

struct Pt2Archive::Zip {
  explicit Zip(const std::string& file) : reader(file) {}
  // Its methods lock; they are not const.
  mutable caffe2::serialize::PyTorchStreamReader reader;
  std::vector<std::string> records;  ///< sorted
};

namespace {

constexpr const char* kExportAgain =
    "Export again with PyTorch 2.9 or later: scripts/export_model.py, or torch.export.export(model.train(), "
    "inputs) "
    "and torch.export.save.";

/// Runs `read` and makes LibTorch's errors ours.
template <typename Read>
auto reading(const std::filesystem::path& file, const std::string& what, const Read& read) {
  try {
    return read();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    throw InputError(file.string() + ": " + what + ": " + message.substr(0, message.find('\n')),
                     "The file is damaged or no exported program. " + std::string(kExportAgain));
  }
}

/// Is it a file's name, and nothing that leads out of its folder?
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

}  // namespace

Pt2Archive::Pt2Archive(std::filesystem::path file) : file_(std::move(file)) {
  std::error_code failed;
  file_bytes_ = static_cast<int64_t>(std::filesystem::file_size(file_, failed));
  if (failed) read_file(file_);  // it knows how to say what is wrong, and the nearest name
  zip_ = reading(file_, "cannot be read as a zip archive",
                 [&] { return std::make_unique<Zip>(file_.string()); });
  zip_->records = reading(file_, "its directory", [&] { return zip_->reader.getAllRecords(); });
  std::sort(zip_->records.begin(), zip_->records.end());
  const auto has = [&](const std::string& record) {
    return std::binary_search(zip_->records.begin(), zip_->records.end(), record);
  };
  if (has("serialized_exported_program.json")) {
    throw InputError(
        file_.string() + ": has the layout of PyTorch 2.8 and earlier, which keeps weights as pickles",
        kExportAgain);
  }
  if (has("constants.pkl") || has("data.pkl")) {
    throw InputError(
        file_.string() + ": is a TorchScript file or a checkpoint of torch.save, not an exported program",
        kExportAgain);
  }
  if (!has("archive_format") || text("archive_format") != "pt2")
    throw InputError(file_.string() + ": has no record 'archive_format' that says 'pt2'", kExportAgain);
  const std::string version = has("archive_version") ? text("archive_version") : "";
  if (version != "0") {
    throw InputError(file_.string() + ": archive_version: got " + in_quotes(version) + ", expected \"0\"",
                     "This version of Pipewright reads what PyTorch 2.9 to 2.11 write.");
  }
  const std::string folder = "models/", suffix = ".json";
  for (const std::string& record : zip_->records) {
    if (!record.starts_with(folder) || !record.ends_with(suffix)) continue;
    if (!name_.empty()) {
      throw InputError(file_.string() + ": holds several programs, '" + name_ + "' and more; expected one",
                       kExportAgain);
    }
    name_ = record.substr(folder.size(), record.size() - folder.size() - suffix.size());
  }
  if (name_.empty()) throw InputError(file_.string() + ": has no record 'models/NAME.json'", kExportAgain);
}

Pt2Archive::~Pt2Archive() = default;

std::string Pt2Archive::program_where() const { return file_.string() + ": models/" + name_ + ".json"; }

Json Pt2Archive::program() const { return parse_json(text("models/" + name_ + ".json"), program_where()); }

int64_t Pt2Archive::record_size(const std::string& record) const {
  if (!std::binary_search(zip_->records.begin(), zip_->records.end(), record))
    throw InputError(file_.string() + ": has no record '" + record + "'", kExportAgain);
  const auto size = static_cast<int64_t>(
      reading(file_, "record '" + record + "'", [&] { return zip_->reader.getRecordSize(record); }));
  // Records are stored as they are: none is larger than the file, whatever its directory says.
  if (size < 0 || size > file_bytes_) {
    throw InputError(file_.string() + ": record '" + record + "': " + std::to_string(size) +
                         " bytes, more than the whole file",
                     kExportAgain);
  }
  return size;
}

std::string Pt2Archive::text(const std::string& record) const {
  std::string bytes(static_cast<size_t>(record_size(record)), '\0');
  reading(file_, "record '" + record + "'",
          [&] { return zip_->reader.getRecord(record, bytes.data(), bytes.size()); });
  return bytes;
}

std::map<std::string, StoredTensor> Pt2Archive::weights() const {
  return tensors("data/weights/", name_ + "_weights_config.json");
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
    tensor.record_bytes = record_size(tensor.record);
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
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

at::Tensor Pt2Archive::read(const StoredTensor& stored) const {
  const at::ScalarType dtype = scalar_type_of(stored.type.dtype);
  const int64_t width = dtype_bytes(stored.type.dtype);
  if (record_size(stored.record) != stored.record_bytes)
    throw InputError(file_.string() + ": record '" + stored.record +
                     "' has changed since the file was opened");
  // Bytes beyond the last whole element belong to no tensor, but are read: the checksum is of all.
  const at::Tensor storage = at::empty({(stored.record_bytes + width - 1) / width}, at::TensorOptions(dtype));
  reading(file_, "record '" + stored.record + "'", [&] {
    return zip_->reader.getRecord(stored.record, storage.mutable_data_ptr(),
                                  static_cast<size_t>(stored.record_bytes));
  });
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
