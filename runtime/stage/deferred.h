// Numbers that a device computes and the host looks at later.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <functional>
#include <vector>

namespace pipewright {

/// What is pushed is copied to the host behind the work that makes it and handed on, in order, once it is
/// there: the host does not wait for the device. On the CPU it is there at once. One thread; nothing is
/// lost but by the destructor.
class Deferred {
 public:
  using Take = std::function<void(const at::Tensor& on_host)>;

  /// Hands on `number`, a tensor of any shape, later: from push(), poll() or flush(); `take` may keep what it
  /// is handed. What it throws comes out of the call that hands on. At most kMost are under way: then push()
  /// waits for the oldest, so that the host is never further ahead.
  void push(const at::Tensor& number, Take take);
  /// Hands on what has come.
  void poll();
  /// Hands on everything; waits for it.
  void flush();
  bool empty() const { return under_way_.empty(); }

  /// Two to four minibatches: enough that the device never waits for the host, and few enough that pinned
  /// memory of minibatches comes back before more is taken.
  static constexpr size_t kMost = 8;

 private:
  struct Entry {
    at::Tensor on_host;
    c10::Event copied;
    Take take;
  };
  Entry new_entry(const at::Tensor& number, Take take);
  void hand_on();

  std::deque<Entry> under_way_;
  // Handed on, for what comes next: pinned memory and events cost several calls of the driver each, which is
  // much for a number of every minibatch.
  std::vector<Entry> spare_;
};

}  // namespace pipewright
