// The header of a safetensors file (https://github.com/huggingface/safetensors, "Format"), without tensors:
// 8 bytes, the length n of a JSON text, little-endian; n bytes of JSON, from '{' on, spaces at its end; data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;           ///< the format's name, "F32"
  std::vector<int64_t> shape;  ///< extents >= 0
  int64_t begin = 0;           ///< first byte, counted from the start of the file
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
};

/// Longest JSON text that readers take, ours and the reference implementation.
inline constexpr int64_t kMostSafetensorsHeaderBytes = 100'000'000;

/// Bytes of one element; 0 for a dtype that the format has not.
int64_t safetensors_element_bytes(std::string_view dtype);

/// `json`: the header's text; `file_bytes`: size of the whole file. Demands all that the format does, and
/// that no two tensors share a byte, no byte belongs to none, each tensor begins at a multiple of its
/// element's size, and its bytes are as many as dtype and shape say. InputError that names `where` and the
/// tensor. Memory: a small multiple of `json`, whatever is in it.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t file_bytes,
                                           const std::string& where);

/// Length, JSON and spaces, so that the data begins at a multiple of 64; `begin` of the entries is set.
/// Entries in the order in which their bytes will be written.
std::string safetensors_header_text(SafetensorsHeader& header);

}  // namespace pipewright
