#include "runtime/evaluate/generate.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "graph/error.h"
#include "runtime/data/bleu.h"
#include "runtime/stage/streams.h"

namespace pipewright {
namespace {

size_t field_number(const Dataset& data, const std::string& name) {
  const auto& fields = data.fields();
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const DataField& field) { return field.name == name; });
  PW_CHECK(found != fields.end(), "no field " << name);
  return static_cast<size_t>(found - fields.begin());
}

/// To all ranks, from the one that made it.
void share(at::Tensor tokens, int64_t from, int64_t tag, RankSession& session) {
  if (session.transport() == nullptr) return;
  session.control().check();
  const int64_t own = session.transport()->rank();
  std::vector<std::unique_ptr<Request>> requests;
  if (own != from) requests.push_back(session.transport()->receive(tokens, from, tag));
  for (int64_t peer = 0; own == from && peer < session.transport()->world_size(); ++peer)
    if (peer != own) requests.push_back(session.transport()->send(tokens, peer, tag));
  for (const auto& request : requests) request->wait();
}

}  // namespace

std::vector<at::Tensor> generate(Evaluation& evaluation, const Generation& generation, const Dataset& data,
                                 const Run& run, const Plan& plan, RankSession& session) {
  const int64_t length = data.fields()[field_number(data, generation.input)].sample_type.shape.at(0);
  std::vector<at::Tensor> made, ended;
  for (int64_t k = 0; k < evaluation.minibatches(); ++k) {
    const int64_t size = evaluation.size_of(k);
    made.push_back(at::zeros({size, length}, at::kLong));
    made.back().select(1, 0).fill_(generation.begin);
    ended.push_back(at::zeros({size}, at::kBool));
  }
  // Nothing else travels on this stream: behind the last stage there is no cut.
  const auto stages = static_cast<int64_t>(plan.stages.size());
  const int64_t tag = StreamTags(stages).of(Stream::kEvaluation, stages - 1);

  for (int64_t place = 0; place + 1 < length; ++place) {
    std::vector<at::Tensor> next(made.size());
    evaluation.run(
        session.hooks(plan, run.gradient_accumulation), session.loading(),
        [&](const EvaluatedMinibatch& minibatch, const at::Tensor& made_scores) {
          const auto k = static_cast<size_t>(minibatch.minibatch);
          const at::Tensor scores = made_scores.reshape({made[k].size(0), length, -1});
          next[k] = scores.select(1, place).argmax(-1).contiguous();
        },
        [&](int64_t k, const std::string& field, at::Tensor& value) {
          if (field == generation.input) value = made[static_cast<size_t>(k)].clone();
        });
    bool all_ended = true;
    for (size_t k = 0; k < made.size(); ++k) {
      if (!next[k].defined()) next[k] = at::empty({made[k].size(0)}, at::kLong);
      share(next[k], evaluation.rank_of(static_cast<int64_t>(k)), tag, session);
      ended[k].logical_or_(next[k].eq(generation.end));
      made[k].select(1, place + 1).copy_(next[k].masked_fill(ended[k], 0));
      all_ended = all_ended && ended[k].all().item<bool>();
    }
    if (all_ended) break;
  }
  return made;
}

double bleu_of(const std::vector<at::Tensor>& made, const Generation& generation, const Dataset& data) {
  const size_t labels = field_number(data, "labels");
  std::vector<int64_t> reference(static_cast<size_t>(data.fields()[labels].sample_type.elements()));
  CorpusBleu bleu(generation.unknown);
  int64_t sample = 0;
  for (const at::Tensor& minibatch : made) {
    for (int64_t i = 0; i < minibatch.size(0); ++i, ++sample) {
      data.read(sample, labels, {}, reference.data());
      const auto stop = std::find_if(reference.begin(), reference.end(), [&](int64_t token) {
        return token == generation.end || token == kNoLabel;
      });
      const auto* row = minibatch.const_data_ptr<int64_t>() + i * minibatch.size(1) + 1;
      const auto* end = std::find(row, row + minibatch.size(1) - 1, int64_t{0});
      bleu.add({row, end}, {reference.begin(), stop});
    }
  }
  return bleu.value();
}

}  // namespace pipewright
