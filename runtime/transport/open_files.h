// Descriptors: a process that has no more of them must not say that its peers have gone.
#pragma once

#include <cstdint>
#include <string>

namespace pipewright {

/// Lets this process, and those that it starts, have as many files open as the system allows them: the soft
/// limit is often 1024 for the sake of programs that ours are not.
void raise_open_file_limit();

/// RunError that says so if this process cannot open one more file now; `what` is what it was about to do.
void demand_descriptor(const std::string& what);

/// RunError unless `files` files may be open at a time; `what` says for what.
void demand_open_files(int64_t files, const std::string& what);

}  // namespace pipewright
