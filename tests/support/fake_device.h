// A device that is none: LibTorch's slot for foreign devices, filled with the host's memory and kernels.
// Whatever runs on it runs as on a GPU: other tensors, another thread for the backward, events that complete
// when they like. And:
//
//  * the bits are the CPU's, so a run on it can be compared with one on the CPU;
//  * an operator that is given a tensor of each kind fails, as it would on a GPU;
//  * what makes the host wait for the device is counted;
//  * its allocator counts, and reports to whoever meters memory;
//  * its clock can be set to go as a test says.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>

namespace pipewright::testing {

/// Device 0 of two; registered with LibTorch by linking this.
at::Device fake_device(int64_t index = 0);

/// Since the last reset_fake_device(), over all threads.
struct FakeDeviceCounts {
  int64_t operators = 0;
  int64_t uploads = 0;           ///< copies from the host that may go on beside it
  int64_t blocking_uploads = 0;  ///< copies from the host that it waits for
  int64_t downloads = 0;         ///< copies to the host that may go on beside it
  int64_t waits = 0;             ///< what makes the host wait: item(), blocking copies to it, synchronising
  int64_t event_waits = 0;       ///< waits for an event, which may be over: not among `waits`
  int64_t uploaded_bytes = 0;    ///< of both kinds of uploads
};
FakeDeviceCounts fake_device_counts();

/// Counts from 0. `late`: an event is complete at its so-manieth query only, or when it is waited for.
void reset_fake_device(int64_t late = 0);

/// From now on every operator takes so many seconds of the device's time, by its name ("aten::mm"), and
/// nothing else takes any; without a function the device's clock is the host's, as at first. `seconds_of` is
/// called from any thread, one at a time. An event that has a time is complete only when the host has waited
/// for it or a later one.
void set_fake_clock(std::function<double(const std::string& op)> seconds_of = {});

}  // namespace pipewright::testing
