#include "models/safetensors/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

constexpr const char* kMetadata = "__metadata__";
constexpr size_t kMostExtents = 64;  // of one shape

struct DtypeRow {
  const char* name;
  int64_t bytes;
};
constexpr DtypeRow kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}, {"C64", 8}};

// Takes the JSON as it comes, so that nothing is built that the file does not justify.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  // Offsets still count from the start of the data.
  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { refuse("null"); }
  bool boolean(bool) override { refuse("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override { refuse("the number " + text); }
  bool binary(binary_t&) override { refuse("binary data"); }
  bool number_integer(number_integer_t value) override { refuse("the number " + std::to_string(value)); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) refuse("the number " + std::to_string(value));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      refuse("the number " + std::to_string(value));
    if (place_ == Place::kOffsets) {
      if (offsets_ == 2) fail("data_offsets: more than two numbers");
      (offsets_++ == 0 ? entry_.begin : end_) = static_cast<int64_t>(value);
    } else {
      if (entry_.shape.size() == kMostExtents)
        fail("shape: more than " + std::to_string(kMostExtents) + " extents");
      entry_.shape.push_back(static_cast<int64_t>(value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || tensor_key_ != "dtype") refuse("the string " + in_quotes(value));
    if (safetensors_element_bytes(value) == 0) {
      std::vector<std::string> known;
      for (const DtypeRow& row : kDtypes) known.emplace_back(row.name);
      fail("dtype: " + in_quotes(value) + " is not known" + suggestion(value, known));
    }
    entry_.dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = key_ == kMetadata ? Place::kMetadata : Place::kTensor;
        if (place_ == Place::kTensor) entry_ = {key_, "", {}, 0, 0};
        has_shape_ = false;
        offsets_ = 0;
        end_ = 0;
        return true;
      default:
        refuse("an object");
    }
  }

  bool key(string_t& name) override {
    if (place_ == Place::kTop || place_ == Place::kMetadata) {
      const bool fresh =
          place_ == Place::kTop ? names_.insert(name).second : header_.metadata.count(name) == 0;
      if (!fresh) throw InputError(where_ + ": " + in_quotes(name) + " is there twice", kRemedy);
      if (name.empty() && place_ == Place::kTop)
        throw InputError(where_ + ": a tensor without a name", kRemedy);
    } else {
      const bool known = name == "dtype" || name == "shape" || name == "data_offsets";
      if (!known)
        fail("unknown key " + in_quotes(name) + suggestion(name, {"dtype", "shape", "data_offsets"}));
      const bool twice = (name == "dtype" && !entry_.dtype.empty()) || (name == "shape" && has_shape_) ||
                         (name == "data_offsets" && offsets_ > 0);
      if (twice) fail(name + ": is there twice");
    }
    (place_ == Place::kTensor ? tensor_key_ : key_) = name;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kTensor) finish_tensor();
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor) refuse("an array");
    if (tensor_key_ == "shape") {
      place_ = Place::kShape;
      has_shape_ = true;
    } else if (tensor_key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2)
      fail("data_offsets: " + std::to_string(offsets_) + " numbers, expected two");
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    throw InputError(where_ + ": the header is not JSON at its byte " + std::to_string(position), kRemedy);
  }

 private:
  static constexpr const char* kRemedy = "The file is damaged, or no safetensors file.";

  [[noreturn]] void fail(const std::string& what) const {
    const bool tensor = place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets;
    throw InputError(where_ + ": " + (tensor ? "tensor " + in_quotes(entry_.name) + ": " : "") + what,
                     kRemedy);
  }

  // `got` is not what the format has here.
  [[noreturn]] void refuse(const std::string& got) const {
    switch (place_) {
      case Place::kStart:
        fail("the header is " + got + ", expected an object");
      case Place::kTop:
        fail(in_quotes(key_) + ": got " + got + ", expected an object");
      case Place::kMetadata:
        fail(std::string(kMetadata) + ": " + in_quotes(key_) + ": got " + got + ", expected a string");
      case Place::kShape:
        fail("shape: got " + got + ", expected whole numbers from 0 on");
      case Place::kOffsets:
        fail("data_offsets: got " + got + ", expected whole numbers from 0 on");
      default:
        fail(tensor_key_ + ": got " + got + ", expected " +
             (tensor_key_ == "dtype" ? "a string" : "an array of whole numbers"));
    }
  }

  void finish_tensor() {
    for (const auto& [there, name] : {std::pair<bool, const char*>{!entry_.dtype.empty(), "dtype"},
                                      {has_shape_, "shape"},
                                      {offsets_ == 2, "data_offsets"}}) {
      if (!there) fail(std::string(name) + ": missing");
    }
    if (end_ < entry_.begin) {
      fail("data_offsets: ends at " + std::to_string(end_) + ", before it begins at " +
           std::to_string(entry_.begin));
    }
    // The product without extents of 0 must be a number too: who multiplies in another order meets it.
    int64_t bytes = safetensors_element_bytes(entry_.dtype);
    bool empty = false;
    for (const int64_t extent : entry_.shape) {
      empty = empty || extent == 0;
      if (extent != 0 && __builtin_mul_overflow(bytes, extent, &bytes)) fail("shape: too many elements");
    }
    if (empty) bytes = 0;
    entry_.bytes = end_ - entry_.begin;
    if (entry_.bytes != bytes) {
      fail("data_offsets: " + std::to_string(entry_.bytes) + " bytes, expected " + std::to_string(bytes) +
           " by dtype and shape");
    }
    header_.tensors.push_back(std::move(entry_));
    entry_ = {};
  }

  enum class Place { kStart, kTop, kTensor, kMetadata, kShape, kOffsets, kEnd } place_ = Place::kStart;
  const std::string& where_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  std::string key_;         // the last one of the top or of the metadata
  std::string tensor_key_;  // the last one of a tensor
  SafetensorsEntry entry_;
  bool has_shape_ = false;
  int offsets_ = 0;
  int64_t end_ = 0;
};

void check_bytes(const SafetensorsHeader& header, int64_t data_begin, int64_t file_bytes,
                 const std::string& where) {
  int64_t position = 0;  // from the start of the data, as the file counts
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry& entry : header.tensors) {
    const int64_t begin = entry.begin;
    if (begin < position) {
      throw InputError(where + ": tensors " + in_quotes(before->name) + " and " + in_quotes(entry.name) +
                           " overlap at byte " + std::to_string(begin) + " of the data",
                       "The file is damaged, or its writer shared tensors, which the format forbids.");
    }
    if (begin > position) {
      throw InputError(where + ": bytes " + std::to_string(position) + ".." + std::to_string(begin - 1) +
                       " of the data belong to no tensor");
    }
    if (begin + entry.bytes > file_bytes - data_begin) {
      throw InputError(where + ": tensor " + in_quotes(entry.name) + " ends at byte " +
                           std::to_string(begin + entry.bytes) + " of the data, the file has " +
                           std::to_string(file_bytes - data_begin),
                       "The file was cut: copy or make it again.");
    }
    if (entry.bytes > 0 && (data_begin + begin) % safetensors_element_bytes(entry.dtype) != 0) {
      throw InputError(where + ": tensor " + in_quotes(entry.name) + " begins at byte " +
                           std::to_string(data_begin + begin) + " of the file, no multiple of the size of " +
                           entry.dtype,
                       "Write the file again with safetensors 0.3 or newer, which aligns tensors.");
    }
    position = begin + entry.bytes;
    before = &entry;
  }
  if (position != file_bytes - data_begin) {
    throw InputError(where + ": the last " + std::to_string(file_bytes - data_begin - position) +
                     " bytes belong to no tensor");
  }
}

}  // namespace

int64_t safetensors_element_bytes(std::string_view dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (dtype == row.name) return row.bytes;
  }
  return 0;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t file_bytes,
                                           const std::string& where) {
  const size_t last = json.find_last_not_of(' ');
  if (json.empty() || json.front() != '{' || json[last] != '}') {
    throw InputError(where + ": the header does not begin with '{' and end with '}'",
                     "The file is damaged, or no safetensors file.");
  }
  HeaderReader reader(where);
  const bool parsed = Json::sax_parse(json.begin(), json.end(), &reader);
  PW_CHECK(parsed, "the reader throws when it does not like what it reads");
  SafetensorsHeader header = reader.take();
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
            });
  const int64_t data_begin = 8 + static_cast<int64_t>(json.size());
  check_bytes(header, data_begin, file_bytes, where);
  for (SafetensorsEntry& entry : header.tensors) entry.begin += data_begin;
  return header;
}

std::string safetensors_header_text(SafetensorsHeader& header) {
  Json json = Json::object();
  if (!header.metadata.empty()) {
    for (const auto& [key, value] : header.metadata) json[kMetadata][key] = value;
  }
  int64_t position = 0;
  Json::object_t::Container& members = json.get_ref<Json::object_t&>();  // not searched for every name
  for (SafetensorsEntry& entry : header.tensors) {
    entry.begin = position;
    position += entry.bytes;
    members.emplace_back(
        entry.name,
        Json{{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, position}}});
  }
  std::string text = json.dump();
  constexpr size_t kAlignment = 64;
  while ((8 + text.size()) % kAlignment != 0) text += ' ';
  const auto data_begin = static_cast<int64_t>(8 + text.size());
  for (SafetensorsEntry& entry : header.tensors) entry.begin += data_begin;
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

}  // namespace pipewright
