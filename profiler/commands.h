// The commands of pipewright-profiler. Each takes the words after its name.
#pragma once

#include <string>
#include <vector>

namespace pipewright {

void profile_command(const std::vector<std::string>& arguments);
void graph_command(const std::vector<std::string>& arguments);
void report_command(const std::vector<std::string>& arguments);
void compare_command(const std::vector<std::string>& arguments);
void combine_command(const std::vector<std::string>& arguments);
void make_images_command(const std::vector<std::string>& arguments);
void interference_command(const std::vector<std::string>& arguments);
void train_predictor_command(const std::vector<std::string>& arguments);
void hog_command(const std::vector<std::string>& arguments);
void models_command(const std::vector<std::string>& arguments);

}  // namespace pipewright
