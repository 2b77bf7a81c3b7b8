// The commands of pipewright-optimizer. Each takes the words after its name.
#pragma once

#include <string>
#include <vector>

namespace pipewright {

using Arguments = std::vector<std::string>;

void run_plan(const Arguments& arguments);
void run_compare(const Arguments& arguments);
void run_check(const Arguments& arguments);
void run_evaluate(const Arguments& arguments);
void run_simulate(const Arguments& arguments);
void run_show(const Arguments& arguments);
void run_calibrate(const Arguments& arguments);
void run_validate(const Arguments& arguments);
void run_convert(const Arguments& arguments);

}  // namespace pipewright
