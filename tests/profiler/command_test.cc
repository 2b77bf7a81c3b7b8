// pipewright-profiler as a process: what scripts see of it.
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "graph/document.h"
#include "graph/graph.h"
#include "graph/profile.h"
#include "test_paths.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;

/// Its files as text, for command lines.
struct Folder : TemporaryFolder {
  std::string operator/(const std::string& name) const { return TemporaryFolder::operator/(name).string(); }
};

struct Result {
  int exit_code = -1;
  std::string out, error;
};

Result run(const std::string& arguments) {
  const Folder folder;
  const std::string command =
      std::string(PIPEWRIGHT_BINARY_DIR) + "/pipewright-profiler " + arguments + " 2>" + (folder / "error");
  FILE* pipe = popen(command.c_str(), "r");
  Result result;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.out.append(buffer, n);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.error = read_file(folder / "error");
  return result;
}

TEST_CASE("profile, then report, by way of files") {
  const Folder folder;
  const std::string profile = folder / "profile.json";
  const Result measured =
      run("--model mlp:layers=2,width=16 --batch-size 4 --warmup 1 --repeats 2 --output " + profile +
          " --report " + (folder / "page.html"));
  CAPTURE(measured.error);
  REQUIRE(measured.exit_code == 0);
  CHECK_THAT(measured.error, Contains("wrote " + (folder / "page.html")));
  CHECK_THAT(measured.out, Contains("layers.0") && Contains("total") && Contains("whole model"));
  const Profile read = read_document<Profile>(profile);
  CHECK(read.model == "mlp:layers=2,width=16");
  CHECK(read.minibatch_samples == 4);
  CHECK(read.input_seconds == 0);

  for (const char* name : {"report.html", "report.md", "report.svg", "report.dot"}) {
    const Result reported = run("report --profile " + profile + " --output " + (folder / name));
    CHECK(reported.exit_code == 0);
    CHECK_THAT(read_file(folder / name), Contains("layers.0"));
  }
  CHECK(read_file(folder / "page.html") == read_file(folder / "report.html"));
  const Result compared = run("compare --profile " + profile + " --profile " + profile);
  CHECK(compared.exit_code == 0);
  CHECK_THAT(compared.out, Contains("+0.0 %") && Contains("all else is equal"));
}

TEST_CASE("within a memory that the whole does not fit it is measured in parts, and says so") {
  const Folder folder;
  const std::string profile = folder / "profile.json";
  const std::string model =
      "--model mlp:layers=4,width=64,image=8,channels=1 --batch-size 4 --repeats 1 --beside 0 ";
  const Result measured = run(model + "--memory 200kB --output " + profile);
  CAPTURE(measured.error);
  REQUIRE(measured.exit_code == 0);
  const Profile read = read_document<Profile>(profile);
  const auto parts = std::find_if(read.provenance.begin(), read.provenance.end(),
                                  [](const auto& entry) { return entry.first == "parts"; });
  REQUIRE(parts != read.provenance.end());
  CHECK(std::stoi(parts->second) > 1);
  CHECK_THAT(measured.out, Contains("whole model, measured in " + parts->second + " parts"));
  const Result refused = run(model + "--memory 20kB --output " + profile);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.error,
             Contains("node 'layers.0.linear' (layers.0, aten::linear) alone needs at least") &&
                 Contains("19.5 KiB are allowed (--memory)"));
}

TEST_CASE("the update of muon is measured where it is asked for, embeddings and heads told apart") {
  const Folder folder;
  const std::string profile = folder / "profile.json";
  // Matrices of 256 x 256: their products take many times what a step element by element takes.
  const std::string model =
      "--model mlp:layers=3,width=256,image=8,channels=1 --batch-size 1 --repeats 3 --beside 0 --output " +
      profile;
  const auto measured = [&](const std::string& words) {
    const Result result = run(model + words);
    CAPTURE(result.error);
    REQUIRE(result.exit_code == 0);
    return read_document<Profile>(profile);
  };
  const Profile sgd = measured(""), muon = measured(" --optimizer muon"),
                none = measured(" --optimizer muon --parameter-group weight:matrix=no");
  const auto says = [](const Profile& read, const char* rule) {
    return std::count(read.provenance.begin(), read.provenance.end(),
                      std::pair<std::string, std::string>("optimizer", rule)) == 1;
  };
  CHECK(says(sgd, "sgd"));
  CHECK(says(muon, "muon"));
  CHECK(muon.whole.step_seconds > 3 * sgd.whole.step_seconds);
  CHECK(muon.whole.step_seconds > 2 * none.whole.step_seconds);
  CHECK_THAT(run(model + " --parameter-group weight:matrix=no").error, Contains("of optimizer muon only"));
  CHECK_THAT(run(model + " --optimizer muon --parameter-group haed:matrix=no").error,
             Contains("matches no trainable parameter"));
  CHECK_THAT(run(model + " --optimizer moun").error, Contains("did you mean 'muon'?"));
}

TEST_CASE("with a data set, its minibatches are used and timed, --json prints what is written") {
  const Folder folder;
  const std::string profile = folder / "profile.json";
  const Result result =
      run("profile --model convnet:width=2 --data synthetic-images --batch-size 4 --warmup 0 --repeats 1 "
          "--json --output " +
          profile);
  CAPTURE(result.error);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out == read_file(profile));
  CHECK(parse_document<Profile>(result.out, "stdout").input_seconds > 0);
}

TEST_CASE("graph and models") {
  const Folder folder;
  const std::string graph = folder / "graph.json", dot = folder / "graph.dot";
  const Result listed = run("graph --model convnet --batch-size 2 --output " + graph + " --dot " + dot);
  REQUIRE(listed.exit_code == 0);
  CHECK_THAT(listed.out,
             Contains("aten::conv2d") && Contains("(2, 1, 28, 28)") && Contains("147 162 parameters"));
  CHECK(read_document<Graph>(graph).name == "convnet");
  CHECK_THAT(read_file(dot), Contains("digraph"));
  CHECK(parse_document<Graph>(run("graph --model convnet --json").out, "stdout").inputs.size() == 2);

  const Result models = run("models");
  CHECK(models.exit_code == 0);
  CHECK_THAT(models.out, Contains("vgg16") && Contains("138 357 544"));
  CHECK(parse_json(run("models --json").out, "stdout").size() > 3);
}

TEST_CASE("print-config says where each setting comes from and measures nothing") {
  const Result result = run("--print-config --batch-size 3 --output /no/such/folder/x");
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("batch-size       3 ") && Contains("command line") && Contains("not set") &&
                             Contains("default"));
}

TEST_CASE("wrong use ends with 2 and one line that says what to do") {
  const Folder folder;
  const std::string good = " --model mlp:layers=1,width=4 --batch-size 2 --repeats 1 ";
  const auto fails = [](const std::string& arguments, const std::string& part) {
    CAPTURE(arguments);
    const Result result = run(arguments);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.error, Contains(part));
    CHECK_THAT(result.error, Catch::StartsWith("pipewright-profiler: error: "));
    CHECK(std::count(result.error.begin(), result.error.end(), '\n') <= 2);
  };
  fails("--batch-size 2", "--model is missing");
  fails("--model mlp", "--batch-size is missing");
  fails("--model mpl --batch-size 2", "did you mean 'mlp'?");
  fails("--model mlp:widht=3 --batch-size 2", "did you mean 'width'?");
  fails("--model mlp --batch-size -1", "--batch-size: -1 is not in 1..");
  fails(good + "--device cdua", "did you mean 'cuda'?");
  fails(good + "--device cpu:1", "the CPU is 'cpu'");
  fails(good + "--precision bfloat61", "did you mean 'bfloat16'?");
  fails(good + "--memory 4", "has no unit");
  fails(good + "--memory 0B", "nothing fits");
  fails(good + "--data fashion-mnsit", "did you mean 'fashion-mnist'?");
  fails(good + "--output " + (folder / "no/such/profile.json"), "there is no folder");
  fails(good + "--output " + (folder / ""), "--output");
  fails(good + "--report page.md", "--report: got \"page.md\"; expected a name that ends in .html");
  fails(good + "--outptu x", "did you mean '--output'?");
  fails("report --profile " + (folder / "none.json") + " --output " + (folder / "x.md"), "none.json");
  fails("report --profile x --output x.pdf", "known: .html");
  fails("compare --profile x", "--profile: got 1, expected two");
  fails("grahp", "did you mean 'graph'?");

  write_file(folder / "broken.json", "{\"schema\": \"pipewright.profile/1\"");
  fails("report --profile " + (folder / "broken.json") + " --output " + (folder / "x.md"), "broken.json");
}

TEST_CASE("a model that is a pipe is refused at once") {
  const Folder folder;
  REQUIRE(::mkfifo((folder / "pipe.pt2").c_str(), 0600) == 0);
  const Result refused = run("graph --batch-size 4 --model " + (folder / "pipe.pt2"));
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.error, Contains("is a pipe, expected a file"));
}

TEST_CASE("under a limit of the address space the program starts, or says that there is no memory") {
  // Below some limit the loader of programs says so itself, with 127; between it and what is needed, it is
  // us.
  const Folder folder;
  for (int megabytes = 300; megabytes <= 1500; megabytes += 100) {
    CAPTURE(megabytes);
    const std::string command = "sh -c 'ulimit -c 0; ulimit -v " + std::to_string(megabytes * 1024) + "; " +
                                PIPEWRIGHT_BINARY_DIR + "/pipewright-profiler --version' >" +
                                (folder / "out") + " 2>" + (folder / "error");
    const int status = std::system(command.c_str());
    REQUIRE(WIFEXITED(status));
    const std::string error = read_file(folder / "error");
    CAPTURE(error);
    const int code = WEXITSTATUS(status);
    CHECK((code == 0 || code == 1 || code == 127));
    if (code == 1) CHECK_THAT(error, Contains("out of memory") && Contains("ulimit -v"));
  }
}

TEST_CASE("make-images: writes a tree, goes on, and names what is wrong") {
  const Folder folder;
  const std::string tree = folder / "tree";
  const std::string command =
      "make-images --data cifar10 --per-class 2 --classes 3 --threads 2 --output " + tree;
  const Result first = run(command);
  CAPTURE(first.error);
  REQUIRE(first.exit_code == 0);
  CHECK_THAT(first.out, Contains("6 training and 6 evaluation images of 32 x 32 in 3 classes") &&
                            Contains("12 written") && Contains("--data cifar10:root=" + tree));
  CHECK(std::filesystem::exists(tree + "/train/class_2/img_1.JPEG"));
  CHECK_THAT(run(command).out, Contains("0 written, 12 were there"));

  const Result other = run(command + " --seed 3");
  CHECK(other.exit_code == 2);
  CHECK_THAT(other.error, Contains("this tree was begun with seed 0, not 3"));
  CHECK_THAT(run("make-images --data cifar100 --output " + tree).error,
             Contains("unknown data set 'cifar100'; did you mean 'cifar10'?"));
  CHECK_THAT(run("make-images --data cifar10").error, Contains("--output is missing"));
  CHECK_THAT(run("make-images --data highres --per-class 51 --output " + tree).error,
             Contains("--per-class: 51 is not in 1..50"));
}

}  // namespace
}  // namespace pipewright::testing
