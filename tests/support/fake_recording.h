// Recordings of the device that is none (tests/support/fake_device.h): what CUDA does with a graph, done with
// the CPU's kernels. A recording is the list of operators that reached the device, each with the very
// memory that it was given; a replay calls them again on it. As on a GPU, or harsher:
//
//  * what is recorded is not done: memory from before is afterwards as it was, memory made meanwhile is
//  filled
//    with nonsense before each replay;
//  * memory is shared as widely as it may be (models/device/device_graph.h): a replay fills with nonsense
//  what
//    was not held all the while when it was recorded, in all recordings that share their memory;
//  * what waits for the device, copies from or to the host or seeds a generator cannot be recorded;
//  * what draws, draws from a generator that the recording was told of.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "models/device/device_graph.h"

namespace pipewright::testing {

std::unique_ptr<DeviceGraphs> make_fake_graphs(at::Device device);

/// Begin, and bytes.
using MemoryRange = std::pair<const char*, size_t>;

/// Since the last reset, over all threads.
struct FakeRecordingCounts {
  int64_t recorded = 0;
  int64_t replayed = 0;
  int64_t operators = 0;  ///< that replays called again
};
FakeRecordingCounts fake_recording_counts();
/// Memory from before its recording that a recording since the last reset reads or writes.
std::vector<MemoryRange> memory_from_outside();
/// Counts from 0. After `most` recordings the device refuses.
void reset_fake_recordings(int64_t most = int64_t{1} << 30);

}  // namespace pipewright::testing
