#include "models/safetensors/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "graph/atomic_file.h"
#include "graph/digest.h"
#include "graph/error.h"
#include "graph/file_kind.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "models/run/scalar_types.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

const std::vector<std::pair<const char*, at::ScalarType>>& dtype_table() {
  static const std::vector<std::pair<const char*, at::ScalarType>> table = {
      {"BOOL", at::kBool},          {"U8", at::kByte},          {"I8", at::kChar},
      {"I16", at::kShort},          {"U16", at::kUInt16},       {"F16", at::kHalf},
      {"BF16", at::kBFloat16},      {"I32", at::kInt},          {"U32", at::kUInt32},
      {"F32", at::kFloat},          {"C64", at::kComplexFloat}, {"F64", at::kDouble},
      {"I64", at::kLong},           {"U64", at::kUInt64},       {"F8_E4M3", at::kFloat8_e4m3fn},
      {"F8_E5M2", at::kFloat8_e5m2}};
  return table;
}

// Returns where nothing is known of what else it is.
void refuse_other_kind(const fs::path& file) {
  const FileKind kind = kind_of_file(file);
  if (kind == FileKind::kUnknown) return;
  std::string remedy =
      "Weights are read from safetensors files: in Python, save_file(model.state_dict(), FILE) of "
      "safetensors.torch.";
  if (kind == FileKind::kTorchSave || kind == FileKind::kPickle) {
    remedy =
        "A pickle may run any program: none is ever opened. In Python: from safetensors.torch import "
        "save_file; save_file(torch.load('" +
        file.string() + "', weights_only=True), 'weights.safetensors').";
  }
  if (kind == FileKind::kGitLfsPointer) remedy = "git lfs pull fetches the file.";
  throw InputError(file.string() + ": " + words_of(kind) + ", no safetensors file", remedy);
}

}  // namespace

at::ScalarType scalar_type_of_safetensors(const std::string& dtype) {
  for (const auto& [name, type] : dtype_table()) {
    if (dtype == name) return type;
  }
  throw InputError("unknown dtype " + in_quotes(dtype));
}

std::string safetensors_dtype_of(at::ScalarType type) {
  for (const auto& [name, known] : dtype_table()) {
    if (type == known) return name;
  }
  throw InputError(std::string("safetensors files cannot hold ") + c10::toString(type));
}

SafetensorsFile::SafetensorsFile(fs::path file) : file_(std::move(file)), bytes_(file_) {
  const int64_t size = bytes_.bytes();
  if (size < 8) {
    throw InputError(
        file_.string() + ": " + std::to_string(size) + " bytes, too short for a safetensors file",
        "The file was cut, or is something else.");
  }
  unsigned char length[8];
  bytes_.read(0, length, 8);
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > static_cast<uint64_t>(std::min(kMostSafetensorsHeaderBytes, size - 8))) {
    refuse_other_kind(file_);
    throw InputError(file_.string() + ": the header should have " + std::to_string(header_bytes) +
                         " bytes, the file has " + std::to_string(size - 8) + " (the most is " +
                         std::to_string(kMostSafetensorsHeaderBytes) + ")",
                     "The file was cut, or is no safetensors file.");
  }
  std::string json(header_bytes, '\0');
  bytes_.read(8, json.data(), static_cast<int64_t>(header_bytes));
  header_ = parse_safetensors_header(json, size, file_.string());
  // The names' characters may lie in the strings themselves; those stay where they are when a vector moves.
  for (size_t i = 0; i < header_.tensors.size(); ++i) positions_[header_.tensors[i].name] = i;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : &header_.tensors[found->second];
}

at::Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
  const at::ScalarType type = scalar_type_of_safetensors(entry.dtype);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(type));
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  bytes_.read(entry.begin, bytes, entry.bytes);
  if (type == at::kBool &&
      std::any_of(bytes, bytes + entry.bytes, [](unsigned char value) { return value > 1; })) {
    throw InputError(
        file_.string() + ": tensor " + in_quotes(entry.name) + ": a BOOL that is neither 0 nor 1",
        "The file is damaged.");
  }
  return tensor;
}

TensorFiles::TensorFiles(const fs::path& file) : path_(file) {
  const auto take = [this](size_t number) {
    for (const SafetensorsEntry& entry : files_[number].tensors()) {
      const auto [place, fresh] = tensors_.emplace(entry.name, std::pair(number, &entry));
      if (fresh) continue;
      throw InputError(path_.string() + ": tensor " + in_quotes(entry.name) + " is in " +
                       files_[place->second.first].path().filename().string() + " and in " +
                       files_[number].path().filename().string());
    }
  };
  if (file.extension() != ".json") {
    files_.emplace_back(file);
    take(0);
    return;
  }
  const Json json = read_json_file(file);
  JsonReader reader(json, file.string());
  reader.expect({"metadata", "weight_map"});
  if (reader.has("metadata")) reader.object("metadata");  // total_size, by convention; not always right
  const auto map = reader.string_entries("weight_map");
  reader.finish();
  std::map<std::string, size_t> numbers;
  for (const auto& [tensor, name] : map) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
      throw InputError(file.string() + ": weight_map: " + in_quotes(tensor) + ": " + in_quotes(name) +
                       " is no file in the folder of the index");
    }
    numbers.emplace(name, numbers.size());
  }
  std::vector<std::string> names(numbers.size());
  for (const auto& [name, number] : numbers) names[number] = name;
  files_.reserve(names.size());
  for (const std::string& name : names) files_.emplace_back(file.parent_path() / name);
  for (size_t i = 0; i < files_.size(); ++i) take(i);
  std::map<std::string, std::string> listed(map.begin(), map.end());
  for (const auto& [tensor, name] : listed) {
    const auto found = tensors_.find(tensor);
    if (found != tensors_.end() && found->second.first == numbers.at(name)) continue;
    throw InputError(file.string() + ": weight_map: " + in_quotes(tensor) + " is not in " + name);
  }
  for (const auto& [tensor, place] : tensors_) {
    if (listed.count(tensor)) continue;
    throw InputError(file.string() + ": weight_map: missing " + in_quotes(tensor) + ", which is in " +
                     files_[place.first].path().filename().string());
  }
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : tensors_) names.push_back(name);
  return names;
}

const SafetensorsEntry* TensorFiles::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second.second;
}

at::Tensor TensorFiles::read(const std::string& name) const {
  const auto& [file, entry] = tensors_.at(name);
  return files_[file].read(*entry);
}

void TensorFiles::rename(const std::function<std::string(const std::string&)>& new_name) {
  std::map<std::string, std::pair<size_t, const SafetensorsEntry*>> renamed;
  for (const auto& [name, place] : tensors_) {
    const std::string other = new_name(name);
    if (other.empty() || renamed.emplace(other, place).second) continue;
    throw InputError(path_.string() + ": two tensors would both be " + in_quotes(other) + ", one of them " +
                     in_quotes(name));
  }
  tensors_ = std::move(renamed);
}

const fs::path& TensorFiles::file_of(const std::string& name) const {
  return files_[tensors_.at(name).first].path();
}

TensorSource TensorSource::of(std::string name, const at::Tensor& tensor) {
  return {std::move(name), safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec(),
          [tensor] { return tensor; }};
}

TensorSource TensorSource::in(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  return {entry.name, entry.dtype, entry.shape, [&file, &entry] { return file.read(entry); }};
}

WrittenFile write_safetensors(const fs::path& file, NamedTensors tensors,
                              const std::map<std::string, std::string>& metadata, const fs::path& instead) {
  std::vector<TensorSource> sources;
  for (auto& [name, tensor] : tensors) sources.push_back(TensorSource::of(std::move(name), tensor));
  return write_safetensors(file, std::move(sources), metadata, instead);
}

WrittenFile write_safetensors(const fs::path& file, std::vector<TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata, const fs::path& instead) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSource& a, const TensorSource& b) {
    const int64_t size_a = safetensors_element_bytes(a.dtype);
    const int64_t size_b = safetensors_element_bytes(b.dtype);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  SafetensorsHeader header;
  header.metadata = metadata;
  for (const TensorSource& tensor : tensors) {
    PW_CHECK(!tensor.name.empty() && tensor.name != "__metadata__",
             "the name of a tensor: '" << tensor.name << "'");
    PW_CHECK(header.tensors.empty() || header.tensors.back().name != tensor.name, tensor.name << " twice");
    int64_t bytes = safetensors_element_bytes(tensor.dtype);
    for (const int64_t extent : tensor.shape) bytes *= extent;
    header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0, bytes});
  }
  const std::string head = safetensors_header_text(header);
  WrittenFile written;
  Digest digest;
  AtomicFile target(file, instead);
  const auto put = [&](const void* bytes, size_t count) {
    target.write(bytes, count);
    digest.add(bytes, count);
    written.bytes += static_cast<int64_t>(count);
  };
  put(head.data(), head.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor tensor = tensors[i].make().detach().cpu().contiguous();
    PW_CHECK_EQ(static_cast<int64_t>(tensor.nbytes()), header.tensors[i].bytes);
    put(tensor.const_data_ptr(), tensor.nbytes());
  }
  target.commit();
  written.digest = digest.text();
  return written;
}

}  // namespace pipewright
