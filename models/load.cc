#include "models/load.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "graph/error.h"
#include "graph/file_kind.h"
#include "graph/regular_file.h"
#include "models/exported/exported_model.h"
#include "models/exported/pt2_archive.h"
#include "models/zoo/registry.h"

namespace pipewright {
namespace {

bool is_built_in(const std::string& name) {
  const auto& rows = model_rows();
  return std::any_of(rows.begin(), rows.end(), [&](const ModelRow& row) { return name == row.name; });
}

// A file of another kind is no misspelt name. One that is not there: the nearest name in its folder is said.
void refuse_other_files(const std::string& name) {
  constexpr const char* kEndings[] = {".pt", ".pth", ".onnx", ".ckpt", ".h5", ".bin", ".safetensors"};
  const std::filesystem::path file = name;
  const bool is_called_one = name.find('/') != std::string::npos ||
                             std::any_of(std::begin(kEndings), std::end(kEndings),
                                         [&](const char* ending) { return name.ends_with(ending); });
  if (!is_called_one && !file_exists(file)) return;
  const FileKind kind = kind_of_file(file);
  if (kind == FileKind::kExportedProgram)
    throw InputError("model " + name + ": is an exported program without the ending .pt2",
                     "Give the file a name that ends in .pt2.");
  demand_exported_program(file, kind);
}

}  // namespace

Model load_model(const std::string& spec, int64_t batch_size) {
  ModelOptions options(parse_spec(spec, "model"));
  const std::string& name = options.spec().name;
  if (!name.ends_with(".pt2")) {
    if (!is_built_in(name)) refuse_other_files(name);
    return build_model(spec, batch_size);
  }
  Model model = build_exported_model(options, batch_size);
  model.graph.name = spec;
  return model;
}

}  // namespace pipewright
