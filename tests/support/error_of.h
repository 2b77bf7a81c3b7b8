// The message of the error that a call throws, for tests of messages.
#pragma once

#include <exception>
#include <string>

namespace pipewright::testing {

/// what() of the `Expected` that `call` throws; otherwise a text that no message equals, saying what came
/// instead.
template <typename Expected, typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("<another exception: ") + error.what() + ">";
  }
  return "<no exception>";
}

}  // namespace pipewright::testing
