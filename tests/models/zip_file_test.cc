// What damage to an archive is seen: nothing of a weight may change without a word.
#include "models/exported/zip_file.h"

#include <catch2/catch.hpp>
#include <random>

#include "graph/error.h"
#include "models/exported/pt2_archive.h"
#include "models/load.h"
#include "tests/models/pt2_files.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using namespace testing;
using Catch::Matchers::Contains;

/// What reading all of a program says; "no error" if nothing.
std::string zip_refusal(const std::filesystem::path& file, const std::string& options = "") {
  try {
    const Model model = load_model(file.string() + options, 4);
    for (const auto& [name, stored] : model.stored) model.archive->read(stored);
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "no error";
}

std::string number(uint64_t value, int width) {
  std::string bytes;
  for (int i = 0; i < width; ++i, value >>= 8) bytes += static_cast<char>(value & 0xff);
  return bytes;
}

/// A member of an archive that is written by hand.
struct Made {
  std::string name, bytes;
  std::string own_name = {};  ///< in its own header, if another
  int64_t offset = -1;        ///< that the directory says, if another
  int method = 0;
};

uint32_t crc(const std::string& bytes) {
  uint32_t value = 0xffffffff;
  for (const char c : bytes) {
    value ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320U : 0U);
  }
  return ~value;
}

std::string archive_of(const std::vector<Made>& members, bool wide = false) {
  std::string file, directory;
  for (const Made& one : members) {
    const auto offset = one.offset >= 0 ? static_cast<uint64_t>(one.offset) : file.size();
    const std::string own = one.own_name.empty() ? one.name : one.own_name;
    const std::string rest =
        number(crc(one.bytes), 4) + number(one.bytes.size(), 4) + number(one.bytes.size(), 4);
    file += number(0x04034b50, 4) + number(20, 2) + number(0, 2) +
            number(static_cast<uint64_t>(one.method), 2) + number(0, 4) + rest + number(own.size(), 2) +
            number(0, 2) + own + one.bytes;
    const std::string extra = wide ? number(1, 2) + number(24, 2) + number(one.bytes.size(), 8) +
                                         number(one.bytes.size(), 8) + number(offset, 8)
                                   : "";
    directory += number(0x02014b50, 4) + number(20, 2) + number(20, 2) + number(0, 2) +
                 number(static_cast<uint64_t>(one.method), 2) + number(0, 4) + number(crc(one.bytes), 4) +
                 (wide ? number(0xffffffff, 4) + number(0xffffffff, 4)
                       : number(one.bytes.size(), 4) + number(one.bytes.size(), 4)) +
                 number(one.name.size(), 2) + number(extra.size(), 2) + number(0, 2) + number(0, 2) +
                 number(0, 2) + number(0, 4) + (wide ? number(0xffffffff, 4) : number(offset, 4)) + one.name +
                 extra;
  }
  const uint64_t start = file.size(), end = start + directory.size();
  file += directory;
  if (wide) {
    file += number(0x06064b50, 4) + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) +
            number(members.size(), 8) + number(members.size(), 8) + number(directory.size(), 8) +
            number(start, 8);
    file += number(0x07064b50, 4) + number(0, 4) + number(end, 8) + number(1, 4);
  }
  return file + number(0x06054b50, 4) + number(0, 4) + number(wide ? 0xffff : members.size(), 2) +
         number(wide ? 0xffff : members.size(), 2) + number(wide ? 0xffffffff : directory.size(), 4) +
         number(wide ? 0xffffffff : start, 4) + number(0, 2);
}

std::string said_of(const std::string& bytes) {
  const TemporaryFolder folder;
  write_file(folder / "x.zip", bytes);
  try {
    const ZipFile zip(folder / "x.zip");
    for (const ZipFile::Member& member : zip.members()) {
      std::string text(static_cast<size_t>(member.bytes), '\0');
      zip.read(member, text.data());
    }
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("an archive gives its members, also one with ZIP64's fields") {
  for (const bool wide : {false, true}) {
    const TemporaryFolder folder;
    write_file(folder / "x.zip", archive_of({{"top/b", "second"}, {"top/a", ""}}, wide));
    const ZipFile zip(folder / "x.zip");
    REQUIRE(zip.members().size() == 2);
    CHECK(zip.members()[0].name == "a");
    REQUIRE(zip.find("b") != nullptr);
    std::string text(6, '\0');
    zip.read(*zip.find("b"), text.data());
    CHECK(text == "second");
    CHECK(zip.find("c") == nullptr);
  }
}

TEST_CASE("an archive that says two things is refused") {
  CHECK(said_of(archive_of({{"a", "x"}, {"b", "y"}})) == "no error");
  CHECK_THAT(said_of(archive_of({{"a", "x"}, {"a", "y"}})), Contains("the member \"a\" is there twice"));
  CHECK_THAT(said_of(archive_of({{"a", "x"}, {"b", "y", "a"}})),
             Contains("\"b\" is called \"a\" in its own header"));
  CHECK_THAT(said_of(archive_of({{"a", "x"}, {"a", "x", "", 0}})), Contains("share bytes"));
  CHECK_THAT(said_of(archive_of({{"a", "x"}, {"b", "y", "", 0}})), Contains("\"b\" is called \"a\""));
  CHECK_THAT(said_of(archive_of({{"a", "x", "", 5000}})), Contains("lies beyond"));
  CHECK_THAT(said_of(archive_of({{"a", "x", "", 0, 8}})), Contains("is compressed"));
  CHECK_THAT(said_of(archive_of({})), Contains("it is empty"));
  CHECK_THAT(said_of("PK"), Contains("it has 2 bytes"));
  CHECK_THAT(said_of(std::string(1000, 'x')), Contains("does not end with an archive's directory"));
  CHECK_THAT(said_of("x" + archive_of({{"a", "x"}})), Contains("its directory is not where the file says"));
  CHECK_THAT(said_of(archive_of({{"a", "x"}}) + "x"), Contains("does not end with"));
}

TEST_CASE("no byte of a weight or of the program changes unseen") {
  const TemporaryFolder folder;
  const std::string name = GENERATE("residual", "tied_embedding");
  const std::string sound = read_file(pt2_fixture(name));
  std::vector<std::pair<int64_t, int64_t>> places;  // of what is read
  {
    const ZipFile zip(pt2_fixture(name));
    for (const auto& member : zip.members()) {
      if (member.name.starts_with("data/weights/") || member.name.starts_with("models/"))
        places.emplace_back(member.offset, member.bytes);
    }
  }
  std::mt19937_64 random(3);
  const auto file = folder.path() / "changed.pt2";
  for (int i = 0; i < 200; ++i) {
    const auto [offset, bytes] = places[random() % places.size()];
    if (bytes == 0) continue;
    std::string changed = sound;
    char& byte = changed[static_cast<size_t>(offset) + random() % static_cast<size_t>(bytes)];
    byte = static_cast<char>(byte ^ (1 << random() % 8));
    write_file(file, changed);
    CHECK_THAT(zip_refusal(file), Contains("is damaged: its checksum"));
  }
  write_file(file, sound);
  CHECK(zip_refusal(file) == "no error");
}

TEST_CASE("weights that take each other's place are seen") {
  const TemporaryFolder folder;
  const std::string config = "data/weights/model_weights_config.json";
  const auto with = [&](const std::function<void(Json&)>& edit) {
    return zip_refusal(edited_json("residual", folder.path(), config, edit));
  };
  CHECK(with([](Json&) {}) == "no error");
  CHECK_THAT(with([](Json& json) {
               Json& all = json["config"];
               all["bn1.bias"]["path_name"] = all["bn1.weight"]["path_name"];
             }),
             Contains("no tensor is stored as record 'data/weights/weight_"));
  CHECK_THAT(with([](Json& json) {
               Json& all = json["config"];
               all["bn1.bias"]["tensor_meta"]["strides"][0]["as_int"] = 0;
             }),
             Contains("several elements at one place"));
  CHECK_THAT(with([](Json& json) {
               Json& strides = json["config"]["stem.weight"]["tensor_meta"]["strides"];
               strides[0]["as_int"] = 8;  // of 9
             }),
             Contains("several elements at one place"));
}

TEST_CASE("a program that makes a value twice is refused") {
  const TemporaryFolder folder;
  const auto file = edited_json("residual", folder.path(), "models/model.json", [](Json& program) {
    Json& nodes = program["graph_module"]["graph"]["nodes"];
    nodes.push_back(nodes[1]);
  });
  CHECK_THAT(zip_refusal(file), Contains("which is there already"));
}

}  // namespace
}  // namespace pipewright
