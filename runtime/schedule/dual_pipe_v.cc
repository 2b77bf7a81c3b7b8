// DualPipeV (github.com/deepseek-ai/DualPipe, the half of DualPipe, arXiv 2412.19437, that has each weight
// once): the stages of zb_v.cc, and a forward of the one runs beside a backward of the other, whose messages
// then hide behind computing. Here the two run one after the other.
//
// Its steps are those of that program: forwards of the first stage; forwards of both; backwards of the second
// one whose weights' part fills gaps, and its forwards; the long middle, forward and backward of either stage
// in turn; the same without forwards of the first stage; backwards of both, in the second half of which the
// weights' parts wait; and these. Theirs needs 2p microbatches; with fewer it is here the order of so many,
// without those that are not there. Backwards always come in two parts, as a stage's program has one kind.
#include <algorithm>
#include <deque>

#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {
namespace {

class DualPipeVList {
 public:
  DualPipeVList(int64_t ranks, int64_t rank, int64_t minibatches)
      : ranks_(ranks), rank_(rank), minibatches_(minibatches) {}

  std::vector<Action> list() && {
    const int64_t behind = ranks_ - 1 - rank_;  // ranks
    const int64_t laid_out = std::max(2 * ranks_, minibatches_);
    for (int64_t i = 0; i < 2 * behind; ++i) forward(kDown);
    for (int64_t i = 0; i <= rank_; ++i) forward(kDown), forward(kBack);
    for (int64_t i = 0; i < behind; ++i) input(kBack), oldest_weight(), forward(kBack);
    for (int64_t i = 0; i < laid_out - ranks_ - behind; ++i)
      forward(kDown), backward(kBack), forward(kBack), backward(kDown);
    for (int64_t i = 0; i < behind; ++i) backward(kBack), forward(kBack), backward(kDown);
    for (int64_t i = 0; i < 2 * (rank_ + 1); ++i) {
      const Way way = i % 2 == 0 ? kBack : kDown;
      if (i <= rank_)
        backward(way);
      else
        input(way);
    }
    for (int64_t i = 0; i < behind; ++i) oldest_weight(), input(kDown);
    while (!waiting_.empty()) oldest_weight();
    return std::move(list_);
  }

 private:
  enum Way { kDown, kBack };

  int64_t stage_of(Way way) const { return way == kDown ? rank_ : 2 * ranks_ - 1 - rank_; }
  void add(const Action& action) {
    if (action.index < minibatches_) list_.push_back(action);
  }
  void forward(Way way) { add({ActionKind::kForward, forwards_[way]++, stage_of(way)}); }
  void input(Way way) {
    waiting_.push_back({ActionKind::kBackwardWeight, inputs_[way], stage_of(way)});
    add({ActionKind::kBackwardInput, inputs_[way]++, stage_of(way)});
  }
  void oldest_weight() {
    if (waiting_.empty()) return;
    add(waiting_.front());
    waiting_.pop_front();
  }
  /// Its own weights' part at once, whatever waits.
  void backward(Way way) {
    input(way);
    add(waiting_.back());
    waiting_.pop_back();
  }

  int64_t ranks_, rank_, minibatches_;
  int64_t forwards_[2] = {0, 0}, inputs_[2] = {0, 0};
  std::deque<Action> waiting_;  // parts of weights
  std::vector<Action> list_;
};

std::vector<Action> dual_pipe_v_list(const PipelineShape& shape, int64_t group, int64_t minibatches) {
  return DualPipeVList(shape.groups(), group, minibatches).list();
}

}  // namespace

std::vector<Action> dual_pipe_v(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  return listed_order(dual_pipe_v_list, shape, stage, replica, span);
}

std::vector<int64_t> dual_pipe_v_depths(const PipelineShape& shape) {
  return listed_depths(dual_pipe_v_list, shape);
}

}  // namespace pipewright
