// Calls of libraries that hear nothing until they return: name servers, c10d, Gloo.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

namespace pipewright {

/// What `make` returns or throws. It runs on a thread of its own; `check` is called on the caller's every
/// 20 ms meanwhile. If that throws (a signal came, the time is over) the call goes on by itself, and what it
/// makes goes with it: `make` holds all that it needs.
template <typename Result>
Result interruptibly(std::function<Result()> make, const std::function<void()>& check) {
  std::packaged_task<Result()> task(std::move(make));
  std::future<Result> made = task.get_future();
  std::thread(std::move(task)).detach();
  while (made.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) check();
  return made.get();
}

}  // namespace pipewright
