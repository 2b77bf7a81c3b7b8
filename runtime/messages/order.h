// The form in which rank 0's orders travel.
#pragma once

#include <string>

#include "runtime/messages/agreement.h"

namespace pipewright {

/// One line. Without a schema: ranks of a job are of one build.
std::string text_of(const Order& order);
/// InputError if it is none.
Order order_of(const std::string& text);

}  // namespace pipewright
