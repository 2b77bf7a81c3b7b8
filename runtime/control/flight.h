// What a rank leaves behind when the job ends badly: flight/rank-K.json in the run folder (docs/formats.md).
#pragma once

#include <filesystem>
#include <string>

#include "runtime/control/progress.h"

namespace pipewright {

std::filesystem::path flight_file(const std::filesystem::path& run_folder, int64_t rank);

/// Best effort, never throws: the error itself is reported in any case.
void write_flight(const std::filesystem::path& run_folder, int64_t rank, const std::string& error,
                  Progress& progress);

/// What ended the job, by the records that are there: all name the cause, each where it met it; where several
/// ranks failed, each by itself, that of the earliest minibatch. "" without any.
std::string error_of_flights(const std::filesystem::path& run_folder);

}  // namespace pipewright
