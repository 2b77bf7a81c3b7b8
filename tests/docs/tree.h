// The files of this project, for tests that look at all of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pipewright::testing {

/// All files below the root of the sources, relative to it and sorted; without build and run folders, hidden
/// folders and what cmake writes beside the sources.
const std::vector<std::filesystem::path>& tree();

std::filesystem::path root();

/// Text of a file of the tree, read once.
const std::string& text_of(const std::filesystem::path& file);

bool has_suffix(const std::filesystem::path& file, const std::vector<std::string>& suffixes);

/// Is the file below one of these top-level folders?
bool is_below(const std::filesystem::path& file, const std::vector<std::string>& folders);

}  // namespace pipewright::testing
