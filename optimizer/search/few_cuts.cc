#include "optimizer/search/few_cuts.h"

#include <numeric>

namespace pipewright {

std::vector<int> thinned(const States& states, int most) {
  std::vector<int> numbers;
  if (states.size() <= most) {
    numbers.resize(states.states.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }
  const State& whole = states.states.back();
  const double all = whole.forward_seconds + whole.backward_seconds;
  numbers.push_back(0);
  int last_part = -1;
  int64_t least = 0;
  for (int i = 1; i < states.last(); ++i) {
    const State& state = states.states[i];
    const double done = state.forward_seconds + state.backward_seconds;
    const int part = all > 0 ? static_cast<int>(done / all * most) : 0;
    if (part != last_part) {
      numbers.push_back(i);
    } else if (state.cut_bytes <= least) {
      numbers.back() = i;
    } else {
      continue;
    }
    last_part = part;
    least = state.cut_bytes;
  }
  numbers.push_back(states.last());
  return numbers;
}

States some_of(const States& states, const std::vector<int>& numbers) {
  States some;
  some.nested = states.nested;
  some.bytes = states.bytes;
  some.values = states.values;
  some.ties = states.ties;
  some.captures = states.captures;
  some.class_factors = states.class_factors;
  some.updates_together = states.updates_together;
  some.exact = false;
  std::vector<int> at(states.size(), -1);
  for (const int number : numbers) {
    at[number] = some.size();
    some.states.push_back(states.states[number]);
  }
  if (states.nested) return some;
  for (const int number : numbers) {
    std::vector<int>& after = some.supersets.emplace_back();
    for (const int j : states.after(number)) {
      if (at[j] >= 0) after.push_back(at[j]);
    }
  }
  return some;
}

Solution named_as(const std::vector<int>& numbers, Solution solution) {
  for (FoundStage& stage : solution.stages) {
    stage.from = numbers[static_cast<size_t>(stage.from)];
    stage.to = numbers[static_cast<size_t>(stage.to)];
  }
  return solution;
}

}  // namespace pipewright
