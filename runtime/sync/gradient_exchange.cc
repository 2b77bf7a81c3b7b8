#include "runtime/sync/gradient_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"
#include "runtime/sync/flat_tensors.h"
#include "runtime/transport/all_reduce.h"
#include "runtime/update/gradient_norm.h"

namespace pipewright {

int64_t sum_over_replicas(Transport& transport, const std::vector<int64_t>& ranks, int64_t tag,
                          std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  int64_t sent_bytes = 0;
  const std::vector<at::Tensor> flats = flatten(tensors);
  for (const at::Tensor& flat : flats) sent_bytes += all_reduce_sum(transport, ranks, tag, flat);
  tensors = unflatten(flats, tensors);
  return sent_bytes;
}

at::Tensor square_sum_of_model(Transport& transport, const std::vector<int64_t>& ranks, int64_t tag,
                               const at::Tensor& by_stage) {
  const at::NoGradGuard no_grad;
  all_reduce_sum(transport, ranks, tag, by_stage);
  return in_order(by_stage);
}

TiedExchange::TiedExchange(const Plan& plan, const std::vector<StageReplica*>& stages, StreamTags tags)
    : plan_(plan), tags_(tags) {
  for (size_t t = 0; t < plan.tied_parameters.size(); ++t) {
    const TiedParameter& tied = plan.tied_parameters[t];
    for (StageReplica* stage : stages) {
      const StageProgram& program = stage->program();
      for (size_t i = 0; i < program.trainable().size(); ++i) {
        if (program.parameters()[program.trainable()[i]] != tied.name) continue;
        copies_.push_back({stage, i, tied.stages, static_cast<int64_t>(t)});
      }
    }
  }
}

int64_t TiedExchange::rank_of(int64_t stage, int64_t replica) const {
  const auto& ranks = plan_.stages[static_cast<size_t>(stage)].ranks;
  return ranks[static_cast<size_t>(replica) % ranks.size()];
}

int64_t TiedExchange::sum_over_stages(Transport* transport) {
  const at::NoGradGuard no_grad;
  // What this rank's own copies give; it may be needed here too, where a rank has several stages.
  std::map<std::pair<int64_t, int64_t>, at::Tensor> gradients;  // by parameter, stage
  for (const Copy& copy : copies_)
    gradients[{copy.number, copy.stage->stage()}] = copy.stage->round_gradients()[copy.position].contiguous();

  std::vector<std::unique_ptr<Request>> sends;
  std::vector<std::unique_ptr<Request>> receives;
  int64_t sent_bytes = 0;
  for (const Copy& copy : copies_) {
    const int64_t stage = copy.stage->stage();
    const int64_t own_rank = rank_of(stage, copy.stage->place());
    const auto own_replicas = static_cast<int64_t>(plan_.stages[static_cast<size_t>(stage)].ranks.size());
    const at::Tensor& own = gradients.at({copy.number, stage});
    std::set<int64_t> told{own_rank};  // a rank with several copies hears once
    for (const int64_t other : copy.all_stages) {
      if (other == stage) continue;
      const auto& ranks = plan_.stages[static_cast<size_t>(other)].ranks;
      for (size_t q = 0; q < ranks.size(); ++q) {
        if (static_cast<int64_t>(q) % own_replicas != copy.stage->place()) continue;
        if (!told.insert(ranks[q]).second) continue;
        sends.push_back(transport->send(own, ranks[q], tags_.of(Stream::kTied, stage, copy.number)));
        sent_bytes += static_cast<int64_t>(own.nbytes());
      }
      const int64_t from = rank_of(other, copy.stage->place());
      at::Tensor& theirs = gradients[{copy.number, other}];
      if (from == own_rank || theirs.defined()) continue;
      theirs = at::empty_like(own);
      receives.push_back(transport->receive(theirs, from, tags_.of(Stream::kTied, other, copy.number)));
    }
  }
  for (const auto& request : receives) request->wait();
  for (const auto& request : sends) request->wait();

  for (const Copy& copy : copies_) {
    at::Tensor sum = gradients.at({copy.number, copy.all_stages[0]});
    for (size_t i = 1; i < copy.all_stages.size(); ++i)
      sum = sum + gradients.at({copy.number, copy.all_stages[i]});
    copy.stage->round_gradients()[copy.position] = sum;
  }
  return sent_bytes;
}

}  // namespace pipewright
