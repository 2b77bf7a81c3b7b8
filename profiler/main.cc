// pipewright-profiler: what one device needs for each node of a model.
#include "graph/command_line.h"
#include "graph/json.h"
#include "models/device/device.h"
#include "profiler/commands.h"
#include "profiler/machine.h"

int main(int argc, char** argv) {
  pipewright::ProgramDescription program;
  program.name = "pipewright-profiler";
  program.summary = "Measures what one device needs for each node of a model.";
  program.example = "pipewright-profiler --model vgg16:classes=10 --batch-size 16 --output profile.json";
  program.commands = {
      {"profile", "measure a model: writes profile.json", pipewright::profile_command},
      {"graph", "print a model: layers, operators, shapes, parameter counts", pipewright::graph_command},
      {"report", "a profile as .html, .md, .svg or .dot", pipewright::report_command},
      {"compare", "two profiles of a model: how well they agree", pipewright::compare_command},
      {"combine", "one profile of several that were measured at different times",
       pipewright::combine_command},
      {"interference", "measure a model beside hogs: the data set of a predictor",
       pipewright::interference_command},
      {"train-predictor", "train the forest that predicts slowdowns, and say how good it is",
       pipewright::train_predictor_command},
      {"hog", "burn a core or a GPU, as another job would, until it is ended", pipewright::hog_command},
      {"make-images", "write synthetic image files in place of a published data set",
       pipewright::make_images_command},
      {"models", "the built-in models, their options and parameter counts", pipewright::models_command}};
  program.versions = [] {
    return "LibTorch " + pipewright::libtorch_version() + "\n" +
           pipewright::join(pipewright::cuda_versions(), "\n") + "\n";
  };
  return pipewright::run_program(program, argc, argv);
}
