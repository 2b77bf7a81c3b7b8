// "Did you mean ...?"
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// The candidate nearest to `word` in edit distance (insert, delete, replace, swap of neighbours), or "" when none is
/// near enough to be a likely slip: more than 2 edits and more than a third of the longer word, or no letter in common.
/// The case of letters does not count. Ties: the first candidate.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// "; did you mean 'x'?" or, when nothing is near, "; known: a, b, c" (the first dozen); "" without candidates. For the end
/// of an error message.
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace pipewright
