#include "models/zoo/attention.h"

#include "graph/error.h"

namespace pipewright {

std::string multi_head_attention(ModelBuilder& model, std::vector<std::string> query_key_value,
                                 const AttentionOptions& options) {
  PW_CHECK_EQ(query_key_value.size(), size_t{3});
  const std::vector<int64_t> shape = model.shape(query_key_value[0]);
  const int64_t tokens = shape.at(1), width = shape.at(2);
  PW_CHECK_EQ(width % options.heads, 0);
  for (std::string& part : query_key_value) {
    part = model.reshape(part, {-1, tokens, options.heads, width / options.heads});
    part = model.transpose(part, 1, 2);
  }
  const std::string y =
      model.scaled_dot_product_attention(query_key_value[0], query_key_value[1], query_key_value[2],
                                         options.is_causal, options.dropout, options.mask);
  return model.reshape(model.transpose(y, 1, 2), {-1, tokens, width});
}

void check_heads(const ModelOptions& options, int64_t width, int64_t heads) {
  if (width % heads == 0) return;
  options.fail("width",
               "got " + std::to_string(width) + ", expected a multiple of heads=" + std::to_string(heads));
}

}  // namespace pipewright
