#include "runtime/data/data_workers.h"

#include <sched.h>

#include <algorithm>

#include "graph/error.h"

namespace pipewright {

DataWorkers data_workers(int64_t wanted, int64_t computing, int64_t processes) {
  PW_CHECK_LE(1, processes);
  if (wanted > 0) return {wanted};
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return {1};
  return {default_data_workers(CPU_COUNT(&cores), processes, computing)};
}

int64_t minibatches_ahead(int64_t workers, int64_t batch_size) {
  PW_CHECK_LE(1, batch_size);
  return std::max<int64_t>(4, 2 + (2 * workers + batch_size - 1) / batch_size);
}

}  // namespace pipewright
