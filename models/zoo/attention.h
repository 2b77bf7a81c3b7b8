// Attention in several heads, as transformers have it.
#pragma once

#include <string>

#include "models/zoo/builder.h"
#include "models/zoo/zoo.h"

namespace pipewright {

struct AttentionOptions {
  int64_t heads;  ///< divides the width
  bool is_causal = false;
  double dropout = 0;     ///< of the weights
  std::string mask = {};  ///< bool (batch, 1, 1, tokens): which tokens are attended; "" = all
};

/// Query, key and value are (batch, tokens, width) of equal shapes; so is the result. The nodes belong to the
/// builder's layer.
std::string multi_head_attention(ModelBuilder& model, std::vector<std::string> query_key_value,
                                 const AttentionOptions& options);

/// Fails with the option `width` unless it is a multiple of `heads`.
void check_heads(const ModelOptions& options, int64_t width, int64_t heads);

}  // namespace pipewright
