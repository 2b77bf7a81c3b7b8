// Which stages run their forward again before the backward, so as to keep less (`--recompute`).
#pragma once

#include <vector>

namespace pipewright {

enum class Recompute { kNever, kWhereNeeded, kAlways };

struct RecomputeChoice {
  Recompute choice;
  const char* name;
  const char* summary;
};
const std::vector<RecomputeChoice>& recompute_choices();

}  // namespace pipewright
