// ZB-V (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv 2401.10241, section 6): the backward
// in two parts, and rank r of p has the stages r and 2p - 1 - r, so that values go to the last rank and come
// back to the first, which begins the backward too. Drawn in docs/schedules.md.
//
// A rank runs forwards of its first stage until its second one begins, forwards of both in turn until a
// backward comes, and then in turn a forward and a backward of the one and of the other. When no forward is
// left, the parts of the weights wait behind those of the inputs. Every rank holds as much: p minibatches of
// both stages, as 1f1b does on its first rank alone. With fewer microbatches than 2p - 1 it is the order of
// so many, without those that are not there.
#include <algorithm>

#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {
namespace {

class ZbVList {
 public:
  ZbVList(int64_t ranks, int64_t rank, int64_t minibatches)
      : ranks_(ranks),
        rank_(rank),
        minibatches_(minibatches),
        laid_out_(std::max(2 * ranks - 1, minibatches)) {}

  std::vector<Action> list() && {
    // Until the first forward is back on this rank, and until the first backward.
    for (int64_t i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) forward(kDown);
    for (int64_t i = 0; i < rank_; ++i) forward(kBack), forward(kDown);
    for (int64_t i = 0; i < ranks_ - rank_; ++i) forward(kBack), backward(kBack);
    while (forwards_[kBack] < laid_out_) {
      if (forwards_[kDown] < laid_out_) forward(kDown);
      backward(kDown);
      forward(kBack);
      backward(kBack);
    }
    // Gradients of inputs first, as another rank waits for them.
    for (int64_t i = 0; i < rank_; ++i) input(kDown), input(kBack);
    for (int64_t i = 0; i < ranks_ - rank_; ++i) backward(kDown);
    while (weights_[kBack] < laid_out_) weight(kBack);
    while (weights_[kDown] < laid_out_) weight(kDown);
    return std::move(list_);
  }

 private:
  enum Way { kDown, kBack };

  void add(ActionKind kind, Way way, int64_t* next) {
    const int64_t stage = way == kDown ? rank_ : 2 * ranks_ - 1 - rank_;
    if (*next < minibatches_) list_.push_back({kind, *next, stage});
    ++*next;
  }
  void forward(Way way) { add(ActionKind::kForward, way, &forwards_[way]); }
  void input(Way way) { add(ActionKind::kBackwardInput, way, &inputs_[way]); }
  void weight(Way way) { add(ActionKind::kBackwardWeight, way, &weights_[way]); }
  void backward(Way way) { input(way), weight(way); }

  int64_t ranks_, rank_, minibatches_;
  int64_t laid_out_;  // minibatches of the order, of which there may be fewer
  int64_t forwards_[2] = {0, 0}, inputs_[2] = {0, 0}, weights_[2] = {0, 0};
  std::vector<Action> list_;
};

std::vector<Action> zb_v_list(const PipelineShape& shape, int64_t group, int64_t minibatches) {
  return ZbVList(shape.groups(), group, minibatches).list();
}

}  // namespace

std::vector<Action> zb_v(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  return listed_order(zb_v_list, shape, stage, replica, span);
}

std::vector<int64_t> zb_v_depths(const PipelineShape& shape) { return listed_depths(zb_v_list, shape); }

}  // namespace pipewright
