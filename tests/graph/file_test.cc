#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <thread>

#include "graph/error.h"
#include "graph/file_kind.h"
#include "graph/json.h"
#include "graph/regular_file.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TemporaryFolder;

size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST_CASE("what is written is read") {
  const TemporaryFolder folder;
  const std::string bytes("a\0b\r\n\xff", 6);
  for (const std::string& content : {std::string(), bytes, std::string(1 << 20, 'x')}) {
    write_file(folder / "x", content);
    CHECK(read_file(folder / "x") == content);
  }
  CHECK(files_in(folder.path()) == 1);  // nothing beside it stays
}

TEST_CASE("a byte order mark is passed over, and that of UTF-16 named") {
  const TemporaryFolder folder;
  const fs::path file = folder / "x";
  write_file(file, "\xef\xbb\xbfsentence\tlabel\n");
  CHECK(read_file(file) == "sentence\tlabel\n");
  CHECK(read_regular_file(file) == "sentence\tlabel\n");
  write_file(file, "\xef\xbb\xbf{\"a\": 1}");
  CHECK(read_json_file(file)["a"] == 1);
  write_file(file, "\xef\xbb");
  CHECK(read_file(file) == "\xef\xbb");
  for (const std::string& text : {std::string("\xff\xfe\x61\0", 4), std::string("\xfe\xff\0a", 4)}) {
    write_file(file, text);
    CHECK(error_of<InputError>([&] { read_file(file); }) ==
          file.string() + ": is a text in UTF-16 (it begins with its byte order mark), expected UTF-8");
  }
}

TEST_CASE("a file that was given for another is told by what it begins with, or by its name") {
  const TemporaryFolder folder;
  const auto kind = [&](const std::string& name, const std::string& bytes) {
    write_file(folder / name, bytes);
    return kind_of_file(folder / name);
  };
  CHECK(kind("w.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n") ==
        FileKind::kGitLfsPointer);
  CHECK(kind("w.safetensors", "<!DOCTYPE html><html>") == FileKind::kWebPage);
  CHECK(kind("w.pt", "\x80\x02\x8a\nl\xfc\x9c") == FileKind::kPickle);
  CHECK(kind("w.pt", "PK\x03\x04..w/data.pkl..PK") == FileKind::kTorchSave);
  CHECK(kind("w.pt", "PK\x03\x04..m/archive_format..PK") == FileKind::kExportedProgram);
  CHECK(kind("w.npz", "PK\x03\x04..a.npy..PK") == FileKind::kNumpy);
  CHECK(kind("w.docx", "PK\x03\x04..PK") == FileKind::kZip);
  CHECK(kind("w.h5", "\x89HDF\r\n\x1a\n....") == FileKind::kHdf5);
  CHECK(kind("w.gguf", std::string("GGUF\3\0\0\0", 8)) == FileKind::kGguf);
  CHECK(kind("w", std::string("\2\0\0\0\0\0\0\0{}", 10)) == FileKind::kSafetensors);
  CHECK(kind("m.onnx", "\x08\x09\x12\x07pytorch") == FileKind::kOnnx);
  CHECK(kind("m.pt.gz", "\x1f\x8b\x08") == FileKind::kCompressed);
  CHECK(kind("empty", "") == FileKind::kEmpty);
  CHECK(kind("x.bin", "something") == FileKind::kUnknown);
  CHECK(kind_of_file(folder.path()) == FileKind::kFolder);
  CHECK_THROWS_AS(kind_of_file(folder / "none"), InputError);
}

TEST_CASE("what a killed process with our number left beside a file is in nobody's way") {
  const TemporaryFolder folder;
  const auto left_over = [&](int number) {
    return folder / (".x.tmp-" + std::to_string(::getpid()) + "-" + std::to_string(number));
  };
  for (int number = 0; number < 300; ++number) std::ofstream(left_over(number)) << "half";
  for (int i = 0; i < 100; ++i) write_file(folder / "x", std::to_string(i));
  CHECK(read_file(folder / "x") == "99");
  for (int number = 0; number < 300; ++number) CHECK(read_file(left_over(number)) == "half");
  CHECK(files_in(folder.path()) == 301);
}

TEST_CASE("reading says why it cannot") {
  const TemporaryFolder folder;
  write_file(folder / "profile.json", "{}");
  const std::string path = folder.path().string();
  CHECK(error_of<InputError>([&] { read_file(folder / "zebra"); }) ==
        path + "/zebra: cannot be read: No such file or directory");
  CHECK(error_of<InputError>([&] { read_file(folder / "profle.json"); }) ==
        path + "/profle.json: cannot be read: No such file or directory; did you mean '" + path +
            "/profile.json'?");
  CHECK(error_of<InputError>([&] { read_file(folder.path()); }) == path + ": is a folder, expected a file");
  CHECK(error_of<InputError>([&] { read_file("/dev/zero"); }) == "/dev/zero: is a device, expected a file");
  CHECK(error_of<InputError>([&] { read_file(""); }) == "the name of a file is empty");
  CHECK(error_of<InputError>([&] { read_json_file(folder / "profile.json" / "x"); }) ==
        path + "/profile.json/x: cannot be read: Not a directory");
}

TEST_CASE("a pipe is read if somebody writes to it, and never waited for without end") {
  const TemporaryFolder folder;
  const fs::path pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(error_of<InputError>([&] { read_file(pipe); }) ==
        pipe.string() + ": is a pipe to which nobody has written for 3 s");
  const std::string text(300000, 'x');
  std::thread writer([&] { write_file(pipe, text); });
  CHECK(read_file(pipe) == text);
  writer.join();
}

TEST_CASE("data and models are read from regular files only, which are opened without waiting") {
  const TemporaryFolder folder;
  write_file(folder / "x", "0123456789");
  fs::create_symlink("x", folder / "link");
  CHECK(read_regular_file(folder / "link") == "0123456789");
  const RegularFile file(folder / "x");
  CHECK(file.bytes() == 10);
  char three[3];
  file.read(4, three, 3);
  CHECK(std::string(three, 3) == "456");
  CHECK(error_of<InputError>([&] { file.read(8, three, 3); }).find("ends at byte 10, 1 bytes early") !=
        std::string::npos);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const auto& [name, what] :
       {std::pair<fs::path, std::string>{folder / "pipe", "is a pipe, expected a file"},
        {folder.path(), "is a folder, expected a file"},
        {"/dev/zero", "is a device, expected a file"},
        {folder / "y", "cannot be read: No such file or directory"}}) {
    CHECK(error_of<InputError>([&, name = name] { read_regular_file(name); }).find(what) !=
          std::string::npos);
  }
}

TEST_CASE("writing says why it cannot and leaves nothing behind") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  try {
    write_file(folder / "no/such/x.json", "{}");
    FAIL("no exception");
  } catch (const RunError& error) {
    CHECK(std::string(error.what()) ==
          path + "/no/such/x.json: cannot be written: No such file or directory");
    CHECK(error.remedy() == "The folder does not exist: mkdir -p " + path + "/no/such");
  }
  CHECK(error_of<RunError>([&] { write_file(folder.path(), "x"); }) ==
        path + ": cannot be written: it is a folder");
  CHECK(error_of<RunError>([&] { write_file("/dev/full", "x"); }) ==
        "/dev/full: cannot be written: No space left on device");
  CHECK(error_of<RunError>([&] { write_file("", "x"); }).find("cannot be written") != std::string::npos);
  CHECK(files_in(folder.path()) == 0);
}

TEST_CASE("a write that fails halfway leaves the old file as it was") {
  const TemporaryFolder folder;
  write_file(folder / "x", "old");
  // A limit on file sizes fails like a full disk does, in the middle of a write.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 4096;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::string error = error_of<RunError>([&] { write_file(folder / "x", std::string(1 << 16, 'n')); });
  REQUIRE(setrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  std::signal(SIGXFSZ, old_handler);
  CHECK(error == (folder / "x").string() + ": cannot be written: File too large");
  CHECK(read_file(folder / "x") == "old");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a reader sees the old or the new file, never half of one") {
  const TemporaryFolder folder;
  const fs::path file = folder / "x";
  const std::string texts[] = {std::string(100000, 'a'), std::string(200000, 'b')};
  write_file(file, texts[0]);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    while (!stop) {
      const std::string seen = read_file(file);
      if (seen != texts[0] && seen != texts[1]) ++torn;
    }
  });
  for (int i = 0; i < 50; ++i) write_file(file, texts[i % 2]);
  stop = true;
  reader.join();
  CHECK(torn == 0);
}

TEST_CASE("two writers at once leave one of the two texts") {
  const TemporaryFolder folder;
  const fs::path file = folder / "x";
  std::vector<std::thread> writers;
  for (char letter : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([&file, letter] {
      for (int i = 0; i < 10; ++i) write_file(file, std::string(50000, letter));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string text = read_file(file);
  CHECK(text == std::string(50000, text.front()));
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("links are followed, modes kept, devices written to") {
  const TemporaryFolder folder;
  write_file(folder / "real", "old");
  REQUIRE(::chmod((folder / "real").c_str(), 0600) == 0);
  fs::create_symlink(folder / "real", folder / "link");
  write_file(folder / "link", "new");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_file(folder / "real") == "new");
  CHECK((fs::status(folder / "real").permissions() & fs::perms::all) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  write_file("/dev/null", "x");
  CHECK(fs::is_character_file("/dev/null"));
}

}  // namespace
}  // namespace pipewright
