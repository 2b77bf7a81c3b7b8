// Some of a problem's cuts: a plan that goes along them is soon found and often nearly the best.
#pragma once

#include <vector>

#include "optimizer/search/search.h"

namespace pipewright {

/// Numbers of states, ascending: both ends, and of each of `most` stretches of compute the one where least
/// crosses. All of them if they are no more than `most`.
std::vector<int> thinned(const States& states, int most);

/// States by these numbers, ascending, both ends among them.
States some_of(const States& states, const std::vector<int>& numbers);

/// A solution along some of the states, in the numbers of all.
Solution named_as(const std::vector<int>& numbers, Solution solution);

}  // namespace pipewright
