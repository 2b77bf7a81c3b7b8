// What comparisons up to rounding say, to people and to programs.
#pragma once

#include <cstdint>
#include <string>

#include "graph/json.h"
#include "runtime/verify/against.h"
#include "runtime/verify/up_to_rounding.h"

namespace pipewright {

std::string number_text(double value);    ///< nine digits
std::string distance_text(double value);  ///< two

/// "parameter 'x' of stage 1 lies 2.0e-02 of its way from OTHER, more than 1.0e-03": found.parameters[i].
std::string distance_words(const UpToRounding& compared, size_t i, const std::string& other);
/// A row for each tensor: how far it is `from` the other, and how far rounding takes it. `with_losses`: and
/// one for these.
std::string distance_table(const UpToRounding& compared, const std::string& from, int64_t width,
                           bool with_losses);
std::string verdict_text(const UpToRounding& compared);
Json distance_json(const UpToRounding& compared);

/// Where they part first: the minibatch of a loss, and parameters with their stages.
std::string parting_words(const AgainstOther& against);
std::string verdict_text(const AgainstOther& against);
Json against_json(const AgainstOther& against);

}  // namespace pipewright
