// Weights of exported programs go out by PyTorch's names and come back: with real processes.
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "test_paths.h"
#include "tests/end_to_end/jobs.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

const std::string kFixtures = PIPEWRIGHT_SOURCE_DIR "/tests/models/pt2/";

void run_well(const TemporaryFolder& folder, const std::vector<std::string>& words) {
  Process process(std::vector<std::string>{program("runtime")} + words, folder / "out", folder / "err");
  const int code = process.wait(60s);
  INFO(process.error());
  REQUIRE(code == 0);
}

std::vector<double> train(const TemporaryFolder& folder, const std::string& fixture, const fs::path& output,
                          const std::vector<std::string>& more) {
  run_well(folder, std::vector<std::string>{"train", "--model", kFixtures + fixture + ".pt2", "--data",
                                            "tensors:file=" + kFixtures + fixture + ".safetensors",
                                            "--batch-size", "4", "--seed", "7", "--learning-rate", "0.1",
                                            "--output", output.string()} +
                       more);
  std::vector<double> losses;
  for (const std::string& line : complete_lines(output / "metrics.jsonl"))
    losses.push_back(parse_json(line, "metrics.jsonl").at("loss").get<double>());
  return losses;
}

std::set<std::string> names_in(const fs::path& file) {
  const std::string bytes = read_file(file);
  uint64_t length = 0;
  REQUIRE(bytes.size() > sizeof length);
  std::memcpy(&length, bytes.data(), sizeof length);
  std::set<std::string> names;
  const Json header = parse_json(bytes.substr(sizeof length, length), file.string());
  for (const auto& entry : header.items()) {
    if (entry.key() != "__metadata__") names.insert(entry.key());
  }
  return names;
}

}  // namespace

TEST_CASE("checkpoint export of a program writes its state_dict, and a run starts from that") {
  const std::map<std::string, std::set<std::string>> names = {
      {"tied_embedding", {"embedding.weight", "head.weight", "middle.weight", "middle.bias"}},
      {"modes", {"first.weight", "first.bias", "head.weight", "head.bias", "mean"}},  // not: scale
      {"batch_norm",
       {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "layers.1.running_mean",
        "layers.1.running_var", "layers.1.num_batches_tracked", "layers.3.weight", "layers.3.bias",
        "layers.4.weight", "layers.4.bias", "layers.4.running_mean", "layers.4.running_var",
        "layers.4.num_batches_tracked", "layers.6.weight", "layers.6.bias"}}};
  for (const auto& [fixture, expected] : names) {
    CAPTURE(fixture);
    const TemporaryFolder folder;
    const auto whole = train(folder, fixture, folder / "whole", {"--minibatches", "10"});
    REQUIRE(whole.size() == 10);
    // Five are an epoch, so what starts from the weights after five meets the same minibatches.
    train(folder, fixture, folder / "first", {"--minibatches", "5", "--checkpoint-every-epochs", "1"});
    const std::string exported = (folder / "model.safetensors").string();
    run_well(folder, {"checkpoint", "export", (folder / "first").string(), "--output", exported});
    CHECK(names_in(exported) == expected);
    // What the run left by itself is the same, and a run without checkpoints leaves it too.
    CHECK(read_file(folder / "first" / "model.safetensors") == read_file(exported));
    run_well(folder, {"checkpoint", "export", (folder / "whole").string(), "--output", exported});
    CHECK(names_in(exported) == expected);
    CHECK(read_file(folder / "whole" / "model.safetensors") == read_file(exported));
    run_well(folder, {"checkpoint", "export", (folder / "first").string(), "--output", exported});
    const auto again =
        train(folder, fixture, folder / "again", {"--minibatches", "5", "--initial-weights", exported});
    CHECK(again == std::vector<double>(whole.begin() + 5, whole.end()));
  }
}
