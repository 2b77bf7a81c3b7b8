// A profile as a file for people.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "graph/profile.h"

namespace pipewright {

/// By the suffix of `file`: ".html" (self-contained: chart and tables), ".md", ".svg" (the chart: time per
/// layer), ".dot" (the layers and the bytes between them). InputError for another suffix, naming the known
/// ones. `profile_file`: where the profile is, for the command that comes next.
std::string report_text(const Profile& profile, const std::filesystem::path& file,
                        const std::filesystem::path& profile_file);
void check_report_suffix(const std::filesystem::path& file);

}  // namespace pipewright
