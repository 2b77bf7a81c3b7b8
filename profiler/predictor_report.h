// A predictor as people read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/text_table.h"
#include "interference/predictor.h"

namespace pipewright {

/// Its targets, how well it does against the mean on each group held out, and what it reads. Lines of `width`
/// characters.
std::string predictor_text(const Predictor& predictor, int64_t rows, int64_t width = kAnyWidth);

/// Why not to rely on it, for standard error; empty where there is no reason.
std::vector<std::string> doubts_of(const Predictor& predictor);
/// A forest that explains less of held-out groups is no better than measuring.
inline constexpr double kGoodR2 = 0.8;

}  // namespace pipewright
