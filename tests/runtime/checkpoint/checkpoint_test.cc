// Checkpoints as files: what is written is found again, and nothing that is damaged is taken.
#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "graph/document.h"
#include "graph/error.h"
#include "models/initialise.h"
#include "models/memory/memory_meter.h"
#include "models/zoo/registry.h"
#include "runtime/checkpoint/checkpoint_keeper.h"
#include "runtime/coordinator/run_points.h"
#include "runtime/checkpoint/checkpoint_state.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/checkpoint/run_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Contains;

namespace fs = std::filesystem;

namespace {

const std::string kModel = "mlp:layers=3,width=4,image=2,channels=1";

Plan straight_plan(const Graph& graph, size_t stages) {
  Plan plan;
  plan.model = graph.name;
  plan.strategy = "manual";
  for (size_t s = 0; s < stages; ++s) {
    Stage stage;
    for (size_t i = graph.nodes.size() * s / stages; i < graph.nodes.size() * (s + 1) / stages; ++i)
      stage.nodes.push_back(graph.nodes[i].name);
    stage.ranks = {plan.world_size++};
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

Run run_in(const fs::path& folder) {
  Run run;
  run.model = kModel;
  run.data = "synthetic-images:image=2";
  run.batch_size = 2;
  run.optimizer.momentum = 0.9;
  run.output = folder.string();
  return run;
}

// A run folder whose stages wrote checkpoints after the minibatches given.
struct Written {
  TemporaryFolder folder;
  Model model = build_model(kModel, 2);
  Run run = run_in(folder.path());
  Plan plan = straight_plan(model.graph, 2);

  explicit Written(const std::vector<int64_t>& minibatches, int64_t keep = 100) {
    CheckpointKeeper keeper(folder.path(), keep);
    for (const int64_t n : minibatches) write(keeper, n);
  }

  StageState state_of(const StageProgram& stage, int64_t updates) const {
    StageState state;
    state.updates = updates;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(updates));
    const auto tensor = [&](const std::string& name) {
      for (const Parameter& parameter : model.graph.parameters) {
        if (parameter.name == name) return at::randn(parameter.type.shape, generator, at::TensorOptions());
      }
      throw std::runtime_error(name);
    };
    for (const auto& name : stage.parameters()) state.weights.push_back(tensor(name));
    std::vector<at::Tensor> velocity;
    for (const size_t i : stage.trainable()) {
      velocity.push_back(tensor(stage.parameters()[i]));
      state.optimizer.updates.push_back(updates + static_cast<int64_t>(i));
    }
    state.optimizer.slots = {{"momentum", velocity}};
    return state;
  }

  StageProgram stage(const Plan& of, size_t s) const {
    return StageProgram(model.graph, partition(model.graph, of), s);
  }

  void write(CheckpointKeeper& keeper, int64_t n) const {
    CheckpointManifest manifest;
    manifest.next_minibatch = n;
    manifest.pipeline_began = n;
    manifest.minibatches_per_epoch = 100;
    manifest.cause = "interval";
    manifest.run = run;
    manifest.plan = plan;
    keeper.begin(manifest);
    for (size_t s = 0; s < 2; ++s) {
      CHECK_FALSE(keeper.poll());
      const StageProgram program = stage(plan, s);
      const auto number = static_cast<int64_t>(s);
      CheckpointStage stage;
      stage.updates = n;
      stage.state = write_checkpoint_file(folder.path(), n, "stage-" + std::to_string(s),
                                          stage_tensors(program, state_of(program, n)));
      keeper.take({n, {{number, stage}}});
    }
    CHECK(keeper.wait([] {}) == checkpoints_of(folder.path()) / checkpoint_name(n));
  }

  fs::path at(int64_t n) const { return checkpoints_of(folder.path()) / checkpoint_name(n); }
  Run resuming(const std::string& resume) const {
    Run resumed = run;
    resumed.resume = resume;
    return resumed;
  }
};

void damage(const fs::path& file, const std::function<void(std::string&)>& change) {
  std::string bytes = read_file(file);
  change(bytes);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

InputError refused(const Run& run) {
  try {
    find_resume(run, /*every_byte=*/true);
  } catch (const InputError& error) {
    return error;
  }
  return InputError("<taken>");
}

}  // namespace

TEST_CASE("the last checkpoints stay, the latest is found, and nothing half-written is left") {
  const Written written({5, 10, 100}, 2);
  CHECK(list_checkpoints(written.folder.path()) == std::vector<fs::path>{written.at(100), written.at(10)});
  CHECK(std::distance(fs::directory_iterator(checkpoints_of(written.folder.path())), {}) == 2);
  const auto found = find_resume(written.resuming("latest"), true);
  REQUIRE(found);
  CHECK(found->folder == written.at(100));
  CHECK(found->manifest.next_minibatch == 100);
  CHECK_NOTHROW(check_resume(*found, written.run, written.model));
  CHECK(find_resume(written.resuming(written.at(10).string()), true)->manifest.next_minibatch == 10);
  CHECK_FALSE(find_resume(written.run, true));
  CHECK(find_resume(written.resuming(written.at(10).string() + "/"), true)->folder == written.at(10));
  const InputError run_folder = refused(written.resuming(written.folder.path().string()));
  CHECK_THAT(run_folder.what(), Contains("is a run folder, expected one of its checkpoints"));
  CHECK_THAT(run_folder.remedy(), Contains(written.at(100).string()));
  const TemporaryFolder empty;
  Run fresh = run_in(empty.path());
  write_document(empty.path() / "run.json", fresh);
  CHECK_THAT(error_of<InputError>([&] { open_checkpoint(empty.path()); }),
             Contains("is the folder of a run that left no checkpoint"));
}

TEST_CASE("a stage of any plan starts from the tensors with its names") {
  const Written written({5});
  const auto checkpoint = find_resume(written.resuming("latest"), true);
  for (const size_t stages : {1, 2, 3}) {
    const Plan plan = straight_plan(written.model.graph, stages);
    for (size_t s = 0; s < stages; ++s) {
      const StageProgram program = written.stage(plan, s);
      const MemoryMeter meter;
      const MemoryMeter::Attached attached(meter);
      const StageState state = load_stage_state(*checkpoint, program, written.run.optimizer);
      const auto booked = meter.peak_bytes_by_purpose();
      CHECK(booked[static_cast<size_t>(MemoryPurpose::kOptimizer)] ==
            booked[static_cast<size_t>(MemoryPurpose::kWeights)]);
      CHECK(booked[static_cast<size_t>(MemoryPurpose::kWeights)] > 0);
      REQUIRE(state.weights.size() == program.parameters().size());
      for (size_t i = 0; i < program.parameters().size(); ++i) {
        for (size_t from = 0; from < 2; ++from) {
          const StageProgram source = written.stage(written.plan, from);
          const auto& names = source.parameters();
          const auto it = std::find(names.begin(), names.end(), program.parameters()[i]);
          if (it == names.end()) continue;
          const auto j = static_cast<size_t>(it - names.begin());
          const StageState expected = written.state_of(source, 5);
          CHECK(state.weights[i].equal(expected.weights[j]));
          CHECK(state.optimizer.updates[i] == expected.optimizer.updates[j]);
          CHECK(state.optimizer.slots.at(0).second[i].equal(expected.optimizer.slots[0].second[j]));
        }
      }
    }
  }
}

TEST_CASE("any flipped bit, any cut, a missing file: refused with the reason, the last good one is offered") {
  const Written written({5, 10});
  std::mt19937_64 random(3);
  for (int i = 0; i < 150; ++i) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(written.at(10))) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    const fs::path file = files[random() % files.size()];
    const std::string before = read_file(file);
    damage(file, [&](std::string& bytes) {
      if (i % 3 == 0) {
        bytes.resize(random() % bytes.size());
      } else {
        bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
      }
    });
    const InputError error = refused(written.resuming("latest"));
    CAPTURE(i, file, error.what());
    // White space of the manifest is not part of what it says.
    if (std::string(error.what()) == "<taken>") {
      CHECK(file.filename() == kManifestName);
      CHECK(parse_json(read_file(file), "damaged") == parse_json(before, "before"));
    } else {
      CHECK_THAT(error.what(), Contains(file.string()));
      CHECK_THAT(error.remedy(),
                 Contains("The last good one is minibatch-5: go on with --resume " + written.at(5).string()));
    }
    damage(file, [&](std::string& bytes) { bytes = before; });
  }
  fs::remove(written.at(10) / "stage-1.safetensors");
  CHECK_THAT(refused(written.resuming("latest")).what(), Contains("stage-1.safetensors: cannot be read"));
  fs::remove(written.at(10) / kManifestName);
  CHECK_THAT(refused(written.resuming("latest")).what(), Contains("has no manifest.json"));
  fs::remove_all(written.at(5));
  CHECK_THAT(refused(written.resuming("latest")).remedy(), Contains("No other good checkpoint"));
  CHECK_THAT(refused(written.resuming("absent")).what(), Contains("there is no such checkpoint"));
}

TEST_CASE("a checkpoint of another job is refused with the key that differs") {
  const Written written({5});
  const auto checkpoint = find_resume(written.resuming("latest"), true);
  const auto error = [&](const std::function<void(Run&)>& change) {
    Run run = written.run;
    change(run);
    return error_of<InputError>(
        [&] { check_resume(*checkpoint, run, build_model(run.model, run.batch_size)); });
  };
  CHECK(error([](Run&) {}) == "<no exception>");
  CHECK(error([](Run& run) { run.data = "synthetic-images:image=2,samples=64"; }) == "<no exception>");
  CHECK(error([](Run& run) { run.optimizer.learning_rate = 1; }) == "<no exception>");
  CHECK_THAT(error([](Run& run) { run.model = "mlp:layers=2,width=4,image=2,channels=1"; }),
             Contains("was made with model " + kModel));
  CHECK_THAT(error([](Run& run) { run.batch_size = 4; }), Contains("batch_size 2, the run has 4"));
  CHECK_THAT(error([](Run& run) { run.seed = 4; }), Contains("seed 0, the run has 4"));
  CHECK_THAT(error([](Run& run) { run.data = "fashion-mnist"; }), Contains("data synthetic-images"));
  CHECK_THAT(error([](Run& run) { run.optimizer.name = "adam"; }), Contains("keeps other tensors"));
}

TEST_CASE("a fresh run moves the checkpoints of an earlier one aside, going back in time moves the later") {
  const Written written({5, 10, 15});
  const auto back = find_resume(written.resuming(written.at(10).string()), true);
  prepare_run_folder(written.folder.path(), back);
  CHECK(list_checkpoints(written.folder.path()) == std::vector<fs::path>{written.at(10), written.at(5)});
  CHECK(fs::exists(written.folder / "earlier-1" / "checkpoints" / "minibatch-15" / "manifest.json"));
  fs::create_directory(partial_checkpoint(written.folder.path(), 20));
  prepare_run_folder(written.folder.path(), {});
  CHECK(list_checkpoints(written.folder.path()).empty());
  CHECK_FALSE(fs::exists(checkpoints_of(written.folder.path())));
  CHECK(fs::exists(written.folder / "earlier-2" / "checkpoints" / "minibatch-5"));
}

TEST_CASE("checkpoints within an epoch are where they are due, and cut no round") {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    CheckpointSettings settings;
    settings.every_minibatches = static_cast<int64_t>(random() % 12);
    settings.every_epochs = static_cast<int64_t>(random() % 3);
    const int64_t period = 1 + static_cast<int64_t>(random() % 6);
    const RunLength length{1 + static_cast<int64_t>(random() % 60), 1 + static_cast<int64_t>(random() % 20)};
    CAPTURE(settings.every_minibatches, settings.every_epochs, period, length.minibatches,
            length.minibatches_per_epoch);
    int64_t done = 0;
    std::vector<int64_t> due;
    for (int64_t epoch = 0; done < length.minibatches; ++epoch) {
      const Span span = span_from(done, length);
      REQUIRE(span.first == done);
      done = span.end();
      REQUIRE(done == std::min((epoch + 1) * length.minibatches_per_epoch, length.minibatches));
      const auto within = checkpoints_within(span, settings, period, length);
      std::vector<int64_t> expected;
      for (int64_t n = span.first + 1; n < done; ++n) {
        if (!checkpoint_due(n, settings, period, length)) continue;
        CHECK(n % period == 0);
        expected.push_back(n);
      }
      CHECK(within == expected);
      // A run that goes on from one of them writes the rest.
      if (!within.empty()) {
        const int64_t from = within[random() % within.size()];
        const auto rest = checkpoints_within(span_from(from, length), settings, period, length);
        CHECK(std::vector<int64_t>(std::upper_bound(within.begin(), within.end(), from), within.end()) ==
              rest);
      }
      due.insert(due.end(), within.begin(), within.end());
      if (checkpoint_due(done, settings, period, length)) due.push_back(done);
    }
    if (settings.every_minibatches > 0) {
      int64_t before = 0;
      for (const int64_t n : due) {
        CHECK(n - before <= settings.every_minibatches + period);
        before = n;
      }
    }
    const bool any = settings.every_minibatches > 0 || settings.every_epochs > 0;
    CHECK((!due.empty() && due.back() == length.minibatches) == any);
  }
  CHECK(checkpoint_due(40, {20, 0, 3, true, "exact"}, 8, {100, 100}));
  CHECK(checkpoint_due(24, {20, 0, 3, true, "exact"}, 8, {100, 100}));
  CHECK_FALSE(checkpoint_due(20, {20, 0, 3, true, "exact"}, 8, {100, 100}));
}

TEST_CASE(
    "initial weights with match=shared: what both have is taken, the rest of the model starts anew, and it "
    "is said") {
  const TemporaryFolder folder;
  const std::string options = "layers=1,width=8,heads=2,tokens=4,positions=4,vocabulary=10";
  const Model language = build_model("bert:" + options, 2),
              model = build_model("bert-classifier:" + options, 2);
  const auto write = [&](const std::string& name, const Model& of, bool old_names) {
    NamedTensors tensors;
    for (const Parameter& parameter : of.graph.parameters) {
      std::string saved = parameter.name;
      if (const size_t at = saved.find("LayerNorm.weight"); old_names && at != std::string::npos)
        saved.replace(at, std::string::npos, "LayerNorm.gamma");
      tensors.emplace_back(saved, at::full(parameter.type.shape, 3.0));
    }
    write_safetensors(folder / name, tensors, {});
    return (folder / name).string();
  };
  const std::string file = write("bert.safetensors", language, false);
  const auto error = [&](const std::string& setting) {
    return error_of<InputError>([&] {
      const InitialWeights weights(setting, model);
      check_initial_weights(weights.files, model, weights.match);
    });
  };
  CHECK_THAT(error(file), Contains("has no tensor \"bert.pooler.dense.bias\""));
  REQUIRE(error(file + ":match=shared") == "<no exception>");
  CHECK_THAT(error(file + ":match=some"),
             Contains("got \"match=some\", expected match=shared, match=fitting or prefix="));
  const std::string other = write("other.safetensors", build_model("convnet:width=2,image=8", 2), false);
  CHECK_THAT(error(other + ":match=shared"), Contains("has no tensor of the model"));
  // Another shape of what both have is a mistake all the same.
  const std::string wide =
      write("wide.safetensors", build_model("bert:layers=1,width=16,heads=2,vocabulary=10", 2), false);
  CHECK_THAT(error(wide + ":match=shared"), Contains("the model has float32 ("));

  const InitialWeights weights(file + ":match=shared", model);
  CHECK_THAT(initial_weights_text(weights, model),
             Contains("21 tensors are those of " + file) &&
                 Contains("; new: bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias, "
                          "classifier.weight; left in the file: cls.predictions."));
  CHECK(initial_weights_text(InitialWeights(file, model), model).empty());
  const StageProgram stage(model.graph, partition(model.graph, single_stage_plan(model.graph, 1)), 0);
  for (const bool old_names : {false, true}) {
    const TensorFiles files(write("names.safetensors", language, old_names));
    check_initial_weights(files, model, WeightsMatch::kShared);
    const StageState state = initial_state_from(files, model, stage, 5);
    for (size_t i = 0; i < state.weights.size(); ++i) {
      const std::string& name = stage.parameters()[i];
      const bool fresh = name.find("pooler") != std::string::npos || name.starts_with("classifier");
      INFO(name);
      CHECK(state.weights[i].equal(fresh ? initial_parameter(model, name, 5)
                                         : at::full(state.weights[i].sizes(), 3.0)));
    }
  }
}

TEST_CASE("initial weights: names without what wrappers and others put in front, heads of other sizes anew") {
  const TemporaryFolder folder;
  const Model model = build_model("convnet:width=2,image=8,classes=5", 2);
  const std::string file = (folder / "w.safetensors").string();
  const auto write = [&](const std::function<std::string(const std::string&)>& saved_name,
                         int64_t classes = 5) {
    NamedTensors tensors = {{saved_name("features.1.num_batches_tracked"), at::zeros({}, at::kLong)}};
    for (const Parameter& parameter : model.graph.parameters) {
      std::vector<int64_t> shape = parameter.type.shape;
      if (shape[0] == 5) shape[0] = classes;
      tensors.emplace_back(saved_name(parameter.name), at::full(shape, 3.0));
    }
    for (const Buffer& buffer : model.graph.buffers)
      tensors.emplace_back(saved_name(buffer.name), at::full(buffer.type.shape, 3.0));
    write_safetensors(file, tensors, {});
  };
  const auto error = [&](const std::string& options) {
    return error_of<InputError>([&] {
      const InitialWeights weights(file + options, model);
      check_initial_weights(weights.files, model, weights.match);
    });
  };
  const std::string none = "<no exception>";
  for (const std::string prefix :
       {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."}) {
    CAPTURE(prefix);
    write([&](const std::string& name) { return prefix + name; });
    CHECK(error("") == none);
    CHECK_THAT(initial_weights_text(InitialWeights(file, model), model),
               Contains("names are taken without "));
  }
  // A compiled part of a model.
  write([](const std::string& name) {
    const size_t dot = name.find('.') + 1;
    return name.substr(0, dot) + "_orig_mod." + name.substr(dot);
  });
  CHECK(error("") == none);
  // Not all have it: they are other names.
  write([](const std::string& name) { return name.starts_with("features") ? "module." + name : name; });
  CHECK_THAT(error(""), Contains("has no tensor"));

  write([](const std::string& name) { return "model.net." + name; });
  CHECK_THAT(error(""), Contains("has no tensor"));
  CHECK(error(":prefix=model.net.") == none);
  CHECK_THAT(error(":prefix=modle."), Contains("no tensor's name begins with \"modle.\""));
  CHECK_THAT(error(":prefix="), Contains("got \"prefix=\""));

  write([](const std::string& name) { return "module." + name; }, 7);
  CHECK_THAT(error(""), Contains("the model has float32 (5"));
  CHECK_THAT(error(":match=shared"), Contains("the model has float32 (5"));
  REQUIRE(error(":match=fitting") == none);
  const InitialWeights weights(file + ":match=fitting", model);
  REQUIRE(weights.other_shapes.size() == 2);
  CHECK_THAT(initial_weights_text(weights, model),
             Contains("; of another shape in the file: " + weights.other_shapes[0]));
  const StageProgram stage(model.graph, partition(model.graph, single_stage_plan(model.graph, 1)), 0);
  const StageState state = initial_state_from(weights.files, model, stage, 5);
  for (size_t i = 0; i < state.weights.size(); ++i) {
    const std::string& name = stage.parameters()[i];
    const bool fresh = std::count(weights.other_shapes.begin(), weights.other_shapes.end(), name) > 0;
    CAPTURE(name);
    CHECK(state.weights[i].equal(fresh ? initial_parameter(model, name, 5)
                                       : at::full(state.weights[i].sizes(), 3.0)));
  }
}

TEST_CASE("initial weights that are no numbers are named where they are read") {
  const TemporaryFolder folder;
  const Model model = build_model("convnet:width=2,image=8", 2);
  const std::string file = (folder / "w.safetensors").string();
  const StageProgram stage(model.graph, partition(model.graph, single_stage_plan(model.graph, 1)), 0);
  const auto error = [&](const std::string& damaged, float value, at::ScalarType dtype) {
    NamedTensors tensors;
    for (const Parameter& parameter : model.graph.parameters)
      tensors.emplace_back(parameter.name, at::ones(parameter.type.shape));
    for (const Buffer& buffer : model.graph.buffers)
      tensors.emplace_back(buffer.name, at::ones(buffer.type.shape));
    for (auto& [name, tensor] : tensors) {
      if (name == damaged) tensor.reshape({-1}).slice(0, tensor.numel() - 1).fill_(value);
      tensor = tensor.to(dtype);
    }
    write_safetensors(file, tensors, {});
    return error_of<InputError>([&] { initial_state_from(TensorFiles(file), model, stage, 1); });
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Parameter& parameter = model.graph.parameters.front();
  std::string last;
  for (const int64_t extent : parameter.type.shape)
    last += (last.empty() ? "" : ", ") + std::to_string(extent - 1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    CHECK(error("", 0, dtype) == "<no exception>");
    CHECK(error(parameter.name, nan, dtype) ==
          "initial_weights: " + file + ": tensor \"" + parameter.name + "\" is nan at [" + last + "]");
    CHECK_THAT(error(parameter.name, -inf, dtype), Contains("is -inf at ["));
  }
  CHECK_THAT(error(model.graph.buffers.back().name, nan, at::kFloat), Contains("is nan at ["));
  CHECK(error(model.graph.buffers.back().name, inf, at::kFloat) == "<no exception>");  // a mask, maybe
}

TEST_CASE("initial weights: every tensor of the model and no other, floating values are converted") {
  const TemporaryFolder folder;
  const Model model = build_model("convnet:width=2,image=8", 2);
  NamedTensors good;
  for (const Parameter& parameter : model.graph.parameters)
    good.emplace_back(parameter.name, at::randn(parameter.type.shape));
  for (const Buffer& buffer : model.graph.buffers)
    good.emplace_back(buffer.name, at::ones(buffer.type.shape));
  REQUIRE(!model.graph.buffers.empty());
  const auto file = folder / "w.safetensors";
  const auto error = [&](const NamedTensors& tensors) {
    write_safetensors(file, tensors, {});
    return error_of<InputError>([&] { check_initial_weights(TensorFiles(file), model); });
  };
  NamedTensors more = good;
  more.emplace_back("features.1.num_batches_tracked", at::zeros({}, at::kLong));
  more.emplace_back("optimizer/momentum/x", at::zeros({3}));
  more[0].second = more[0].second.to(at::kBFloat16);
  REQUIRE(error(more) == "<no exception>");
  const StageProgram stage(model.graph, partition(model.graph, single_stage_plan(model.graph, 1)), 0);
  const StageState state = initial_state_from(TensorFiles(file), model, stage, 1);
  REQUIRE(state.weights.size() == stage.parameters().size());
  for (size_t i = 0; i < state.weights.size(); ++i) {
    for (const auto& [name, tensor] : more) {
      if (name == stage.parameters()[i]) CHECK(state.weights[i].equal(tensor.to(at::kFloat)));
    }
  }
  more = good;
  more.emplace_back("classifier.weights", at::zeros({3}));
  CHECK_THAT(error(more), Contains("\"classifier.weights\" is none of the model"));
  more = good;
  const std::string name = more.back().first;
  more.back().first += "s";
  CHECK_THAT(error(more),
             Contains("has no tensor \"" + name + "\"") && Contains("did you mean '" + name + "s'"));
  more = good;
  more.front().second = more.front().second.reshape({-1});
  CHECK_THAT(error(more), Contains("the model has float32 ("));
  more = good;
  more.front().second = more.front().second.to(at::kInt);
  CHECK_THAT(error(more), Contains("is I32 ("));
}
