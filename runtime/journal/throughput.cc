#include "runtime/journal/throughput.h"

namespace pipewright {

double samples_over_wall_time(const Summary& summary) {
  if (!(summary.wall_seconds > 0) || summary.minibatches <= 0) return 0;
  const double part =
      static_cast<double>(summary.own_minibatches()) / static_cast<double>(summary.minibatches);
  return part * static_cast<double>(summary.samples) / summary.wall_seconds;
}

}  // namespace pipewright
