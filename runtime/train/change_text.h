// A change of the plan that rank 0 has decided, as it tells the others.
#pragma once

#include <string>

#include "runtime/job/adapt.h"

namespace pipewright {

std::string text_of(const PlannedChange& change);
PlannedChange change_from(const std::string& text);

}  // namespace pipewright
