// Files of tensors: what the format says, byte by byte; what is refused, and how.
#include "models/safetensors/safetensors.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "graph/error.h"
#include "graph/json.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Contains;

namespace {

std::string file_bytes(const std::string& json, const std::string& data) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return bytes + json + data;
}

// Spaces before the last brace's end, so that the data begins at a multiple of 8.
std::string padded(std::string json) {
  while (json.size() % 8 != 0) json += ' ';
  return json;
}

// The message for a file of this JSON and so many bytes of data.
std::string refusal(const TemporaryFolder& folder, const std::string& json, size_t data_bytes) {
  write_file(folder / "f.safetensors", file_bytes(json, std::string(data_bytes, '\0')));
  const std::string error = error_of<InputError>([&] { SafetensorsFile(folder / "f.safetensors"); });
  const std::string where = (folder / "f.safetensors").string() + ": ";
  if (error == "<no exception>") return error;
  CHECK(error.rfind(where, 0) == 0);
  return error.substr(std::min(where.size(), error.size()));
}

const std::string kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

}  // namespace

TEST_CASE("every dtype, empty tensors and scalars come back, equal tensors give equal bytes") {
  const TemporaryFolder folder;
  NamedTensors tensors = {
      {"weight", at::randn({3, 5})},
      {"ü.\"quoted\"", at::randn({2, 2, 2}, at::kDouble)},
      {"scalar", at::scalar_tensor(7, at::kLong)},
      {"empty", at::zeros({4, 0, 2})},
      {"mask", at::randint(2, {9}).to(at::kBool)},
      {"half", at::randn({3}).to(at::kHalf)},
      {"brain", at::randn({3}).to(at::kBFloat16)},
      {"transposed", at::randn({4, 3}).t()},
      {"bytes", at::randint(255, {5}).to(at::kByte)},
      {"small", at::randint(100, {5}).to(at::kChar)},
      {"short", at::randint(100, {5}).to(at::kShort)},
      {"int", at::randint(100, {5}).to(at::kInt)},
      {"f8", at::randn({5}).to(at::kFloat8_e4m3fn)},
  };
  const auto written = write_safetensors(folder / "a.safetensors", tensors, {{"format", "pt"}});
  std::reverse(tensors.begin(), tensors.end());
  write_safetensors(folder / "b.safetensors", tensors, {{"format", "pt"}});
  const std::string bytes = read_file(folder / "a.safetensors");
  CHECK(bytes == read_file(folder / "b.safetensors"));
  CHECK(written.bytes == static_cast<int64_t>(bytes.size()));
  CHECK(written.digest == digest_of(bytes));

  const SafetensorsFile file(folder / "a.safetensors");
  CHECK(file.tensors().size() == tensors.size());
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(file.find("absent") == nullptr);
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    const SafetensorsEntry* entry = file.find(name);
    REQUIRE(entry);
    const at::Tensor read = file.read(*entry);
    CHECK(read.scalar_type() == tensor.scalar_type());
    CHECK(read.sizes() == tensor.sizes());
    CHECK(read.is_contiguous());
    CHECK(read.to(at::kDouble).equal(tensor.to(at::kDouble)));
  }
}

TEST_CASE("a small file, byte by byte") {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {{"b", at::full({1}, 1.0f)}, {"a", at::full({2}, 2, at::kByte)}}, {});
  const std::string json =
      R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})";
  std::string padding;
  while ((8 + json.size() + padding.size()) % 64 != 0) padding += ' ';
  CHECK(read_file(folder / "f") == file_bytes(json + padding, std::string("\x00\x00\x80\x3f\x02\x02", 6)));
}

TEST_CASE("no tensors at all is a file") {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", NamedTensors{}, {});
  CHECK(SafetensorsFile(folder / "f").tensors().empty());
}

TEST_CASE("a header that says other than the format allows is refused with tensor and reason") {
  const TemporaryFolder folder;
  CHECK(refusal(folder, padded(kOne), 8) == "<no exception>");
  const auto one = [&](const std::string& entry, size_t data = 8) {
    return refusal(folder, padded("{\"a\":" + entry + "}"), data);
  };
  CHECK_THAT(one(R"({"shape":[2],"data_offsets":[0,8]})"), Contains("\"a\": dtype: missing"));
  CHECK_THAT(one(R"({"dtype":"F32","data_offsets":[0,8]})"), Contains("shape: missing"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[2]})"), Contains("data_offsets: missing"));
  CHECK_THAT(one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"),
             Contains("\"F33\" is not known; did you mean 'F32'?"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), Contains("unknown key \"x\""));
  CHECK_THAT(one(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
             Contains("dtype: is there twice"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"),
             Contains("shape: is there twice"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
             Contains("8 bytes, expected 12 by dtype and shape"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
             Contains("shape: got the number -2"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
             Contains("shape: got the number 2.0"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})"), Contains("shape: got the string"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"), Contains("shape: got an array"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"),
             Contains("shape: got the number 2, expected an array"));
  CHECK_THAT(one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), Contains("expected a string"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), Contains("before it begins"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), Contains("1 numbers, expected two"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})"), Contains("more than two"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[4294967296,4294967296,4294967296,0],"data_offsets":[0,0]})", 0),
             Contains("too many elements"));
  CHECK_THAT(one(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})"),
             Contains("9223372036854775808"));
  CHECK_THAT(one("3"), Contains("\"a\": got the number 3, expected an object"));
  CHECK_THAT(refusal(folder, padded("[]"), 0), Contains("does not begin with '{'"));
  CHECK_THAT(refusal(folder, " " + kOne, 8), Contains("does not begin with '{'"));
  CHECK_THAT(refusal(folder, kOne + "\n", 8), Contains("does not begin with '{'"));
  CHECK_THAT(refusal(folder, padded(kOne + "}"), 8), Contains("not JSON"));
  CHECK_THAT(refusal(folder, padded("{\"\xff\":{}}"), 8), Contains("not JSON"));
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  CHECK_THAT(refusal(folder, padded("{" + a + "," + a + "}"), 8), Contains("\"a\" is there twice"));
  CHECK_THAT(
      refusal(folder, padded("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"), 8),
      Contains("\"a\" and \"b\" overlap at byte 4"));
  CHECK_THAT(
      refusal(folder, padded("{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}})"), 10),
      Contains("bytes 8..8 of the data belong to no tensor"));
  CHECK_THAT(refusal(folder, padded(kOne), 9), Contains("the last 1 bytes belong to no tensor"));
  CHECK_THAT(refusal(folder, padded(kOne), 7), Contains("ends at byte 8 of the data, the file has 7"));
  CHECK_THAT(refusal(folder,
                     padded(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                            R"("a":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})"),
                     5),
             Contains("no multiple of the size of F32"));
  CHECK_THAT(refusal(folder, padded(R"({"__metadata__":{"x":1}})"), 0), Contains("__metadata__: \"x\""));
  CHECK_THAT(refusal(folder, padded(R"({"__metadata__":{"x":"1","x":"2"}})"), 0), Contains("twice"));
}

TEST_CASE("files that are none: empty, cut, a folder, absurd lengths, a bad truth value") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes) {
    write_file(folder / "f", bytes);
    return error_of<InputError>([&] { SafetensorsFile(folder / "f"); });
  };
  CHECK_THAT(refused(""), Contains("0 bytes, too short"));
  CHECK_THAT(refused("1234567"), Contains("7 bytes, too short"));
  CHECK_THAT(refused(std::string(8, '\xff')), Contains("header should have 18446744073709551615 bytes"));
  CHECK_THAT(refused(file_bytes(kOne, "").substr(0, 30)), Contains("header should have"));
  CHECK_THAT(refused(std::string(8, '\0')), Contains("does not begin"));
  CHECK_THAT(error_of<InputError>([&] { SafetensorsFile(folder.path()); }), Contains("is a folder"));
  CHECK_THAT(error_of<InputError>([&] { SafetensorsFile(folder / "absent"); }), Contains("No such file"));
  write_file(folder / "f", file_bytes(R"({"m":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})",
                                      std::string("\1\2", 2)));
  const SafetensorsFile file(folder / "f");
  CHECK_THAT(error_of<InputError>([&] { file.read(file.tensors()[0]); }), Contains("neither 0 nor 1"));
}

TEST_CASE("a file that is cut while it is open is an error") {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {{"a", at::zeros({100})}}, {});
  const SafetensorsFile file(folder / "f");
  REQUIRE(::truncate((folder / "f").c_str(), 200) == 0);
  CHECK_THAT(error_of<InputError>([&] { file.read(file.tensors()[0]); }),
             Contains("was cut while it was read"));
}

TEST_CASE("an index joins its files, what disagrees is refused") {
  const TemporaryFolder folder;
  write_safetensors(folder / "m-1.safetensors", {{"a", at::full({2}, 1.0f)}, {"b", at::full({1}, 2.0f)}}, {});
  write_safetensors(folder / "m-2.safetensors", {{"c", at::full({3}, 3.0f)}}, {});
  const auto index = folder / "m.safetensors.index.json";
  const auto refused = [&](const std::string& map) {
    write_file(index, R"({"metadata": {"total_size": 24}, "weight_map": {)" + map + "}}");
    return error_of<InputError>([&] { TensorFiles{index}; });
  };
  const std::string good = R"("a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors")";
  REQUIRE(refused(good) == "<no exception>");
  const TensorFiles files(index);
  CHECK(files.names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(files.read("c").equal(at::full({3}, 3.0f)));
  CHECK(files.file_of("c").filename() == "m-2.safetensors");
  CHECK(files.find("d") == nullptr);
  CHECK_THAT(refused(R"("a": "m-1.safetensors", "c": "m-2.safetensors")"), Contains("missing \"b\""));
  CHECK_THAT(refused(good + R"(, "d": "m-2.safetensors")"), Contains("\"d\" is not in m-2.safetensors"));
  CHECK_THAT(refused(R"("a": "m-2.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors")"),
             Contains("\"a\" is not in m-2.safetensors"));
  CHECK_THAT(refused(good + R"(, "d": "m-3.safetensors")"), Contains("m-3.safetensors: cannot be read"));
  CHECK_THAT(refused(good + R"(, "d": "../m-1.safetensors")"),
             Contains("no file in the folder of the index"));
  write_file(index, R"({"weight_map": {}, "more": 1})");
  CHECK_THAT(error_of<InputError>([&] { TensorFiles{index}; }), Contains("unknown key"));
  write_safetensors(folder / "m-2.safetensors", {{"c", at::zeros({1})}, {"a", at::zeros({1})}}, {});
  CHECK_THAT(refused(good), Contains("tensor \"a\" is in m-1.safetensors and in m-2.safetensors"));
}
