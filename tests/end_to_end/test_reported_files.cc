// Files as users had them, of kinds that were refused in words that did not help, or taken for others.
#include <catch2/catch.hpp>

#include "graph/summary.h"
#include "tests/end_to_end/commands.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Matchers::Contains;

namespace fs = std::filesystem;

namespace {

struct Reported {
  explicit Reported(const std::string& name) : inputs(shared_data() / "reported" / name) {}
  bool is_there() const { return !shared_data().empty() && fs::exists(inputs); }
  // One process, a few minibatches.
  Outcome train(const Words& words) const {
    return runtime(folder, Words{"train", "--batch-size", "4", "--minibatches", "3", "--overwrite",
                                 "--output", (folder / "run").string()} +
                               words);
  }
  Words tensors() const { return {"--data", "tensors:file=" + (inputs / "data.safetensors").string()}; }

  const fs::path inputs;
  const TemporaryFolder folder;
};

}  // namespace

TEST_CASE(
    "reported: names of weights that a wrapper changed, a head of another size, files that are no weights") {
  const Reported reported("names_of_weights");
  if (!reported.is_there()) return skip("the reported inputs are not here");
  const auto train = [&](const std::string& file) {
    return reported.train(Words{"--model", (reported.inputs / "model.pt2").string(), "--initial-weights",
                                (reported.inputs / file).string()} +
                          reported.tensors());
  };
  for (const std::string file : {"w_module.safetensors", "w_orig.safetensors"}) {
    const Outcome outcome = train(file);
    INFO(outcome.error);
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.error, Contains("initial weights: names are taken without "));
  }
  const Outcome shared = train("w_shape.safetensors:match=shared");
  CHECK(shared.code == 2);
  CHECK_THAT(shared.error, Contains("FILE:match=fitting"));
  const Outcome fitting = train("w_shape.safetensors:match=fitting");
  INFO(fitting.error);
  CHECK(fitting.code == 0);
  CHECK_THAT(fitting.error, Contains("of another shape in the file: h.bias, h.weight"));
  CHECK_THAT(train("w.pt").error, Contains("w.pt: is a TorchScript file or a checkpoint of torch.save, no "
                                           "safetensors file") &&
                                      Contains("save_file(torch.load("));
  CHECK_THAT(train("w_lfs.safetensors").error, Contains("is a Git LFS pointer") && Contains("git lfs pull"));
}

TEST_CASE("reported: models that are files of other kinds") {
  const Reported reported("model_files_of_other_kinds");
  if (!reported.is_there()) return skip("the reported inputs are not here");
  for (const std::string file : {"sd.pth", "ts.pt", "m.onnx", "ts.pt2"}) {
    const Outcome outcome =
        reported.train(Words{"--model", (reported.inputs / file).string()} + reported.tensors());
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.error, Contains(file + ": is a") && Contains(", not an exported program") &&
                                  Contains("Export again"));
  }
}

TEST_CASE("reported: a weight that is nan") {
  const Reported reported("nan_in_initial_weights");
  if (!reported.is_there()) return skip("the reported inputs are not here");
  const Outcome outcome =
      reported.train(Words{"--model", (reported.inputs / "model.pt2").string(), "--initial-weights",
                           (reported.inputs / "weights.safetensors").string()} +
                     reported.tensors());
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.error, Contains("weights.safetensors: tensor \"h.bias\" is nan at ["));
  CHECK_FALSE(fs::exists(reported.folder / "run" / "run.json"));
}

TEST_CASE("reported: a table with a byte order mark") {
  const Reported reported("byte_order_mark");
  if (!reported.is_there()) return skip("the reported inputs are not here");
  const Outcome outcome = reported.train(
      {"--model", "bert-classifier:layers=1,width=16,heads=2,tokens=16,vocabulary=62", "--data",
       "sentences:root=" + reported.inputs.string() +
           ",vocabulary=" + (reported.inputs / "vocab.txt").string() + ",tokens=16"});
  INFO(outcome.error);
  CHECK(outcome.code == 0);
}
