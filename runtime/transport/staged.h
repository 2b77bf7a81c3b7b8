// Tensors of a device over a transport of the host: copied out through memory that the device reaches by
// itself, sent, received and copied in, each beside what the device computes.
#pragma once

#include <memory>

#include "runtime/transport/copy_engine.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// Messages of tensors of the engine's device. `host` carries them, as messages of the same shape and dtype
/// with the same tags; others may send tensors of the host with it. A send's wait() returns when the host
/// transport has taken the message; a receive's when the message has come: its copy to the device is then
/// ahead of what the calling thread's current stream is given. The thread that computes never waits for the
/// device.
///
/// One thread waits for copies to the host and sends, in the order of send(). Another takes in what comes, in
/// the order of receive(), so that the copy to the device need not wait for wait(); a message that is asked
/// for before its turn is taken in by whoever asks.
std::unique_ptr<Transport> make_staged_transport(std::shared_ptr<Transport> host,
                                                 std::unique_ptr<CopyEngine> engine);

}  // namespace pipewright
