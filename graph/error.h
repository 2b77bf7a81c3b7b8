// How Pipewright fails.
//
// Two kinds of error, decided once:
//  * what the world did to us (a file, a peer, a device, a user's input): an exception derived from `Error`. It carries
//    the exit code of docs/semantics.md and, besides the message, the likely cause and the next command.
//  * what we did wrong (a broken invariant): PW_CHECK*, which print the place and both values and throw `CheckError`.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace pipewright {

/// Exit codes of the three programs. Fixed: others script against them.
enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,         ///< failed while running
  kBadInput = 2,       ///< wrong use, or a bad file, option or document
  kInvalidPlan = 3,    ///< the plan does not fit this model, world or schedule
  kInfeasible = 4,     ///< does not fit the memory or the devices given
  kPeerLost = 5,       ///< a peer was lost, stuck or unreachable
  kNumerical = 6,      ///< a numerical check failed
  kInterrupted = 130,  ///< SIGINT
  kTerminated = 143,   ///< SIGTERM
};

/// `what()` is one line: what, where, got, expected. `remedy()` is the likely cause and the next command; may be empty.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what, std::string remedy = "")
      : std::runtime_error(what), code_(code), remedy_(std::move(remedy)) {}
  ExitCode code() const { return code_; }
  const std::string& remedy() const { return remedy_; }

 private:
  ExitCode code_;
  std::string remedy_;
};

template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& what, std::string remedy = "") : Error(kCode, what, std::move(remedy)) {}
};
using RunError = ErrorOf<ExitCode::kFailed>;
using InputError = ErrorOf<ExitCode::kBadInput>;
using PlanError = ErrorOf<ExitCode::kInvalidPlan>;
using InfeasibleError = ErrorOf<ExitCode::kInfeasible>;
using PeerError = ErrorOf<ExitCode::kPeerLost>;
using NumericalError = ErrorOf<ExitCode::kNumerical>;

/// A defect of Pipewright itself.
class CheckError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] inline void check_failed(const char* file, int line, const std::string& text) {
  throw CheckError(std::string(file) + ":" + std::to_string(line) + ": check failed: " + text);
}
template <typename A, typename B>
[[noreturn]] void check_failed_values(const char* file, int line, const char* expression, const A& a, const B& b) {
  std::ostringstream out;
  out << expression << " (" << a << " against " << b << ")";
  check_failed(file, line, out.str());
}
}  // namespace detail

// The only macros of the project: they need the expression's text and place.
#define PW_CHECK(condition, message)                                                         \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::ostringstream pw_out;                                                             \
      pw_out << #condition << ": " << message; /* NOLINT: message may be a << chain */       \
      ::pipewright::detail::check_failed(__FILE__, __LINE__, pw_out.str());                  \
    }                                                                                        \
  } while (false)
#define PW_CHECK_OP(a, op, b)                                                                \
  do {                                                                                       \
    const auto& pw_a = (a);                                                                  \
    const auto& pw_b = (b);                                                                  \
    if (!(pw_a op pw_b))                                                                     \
      ::pipewright::detail::check_failed_values(__FILE__, __LINE__, #a " " #op " " #b, pw_a, pw_b); \
  } while (false)
#define PW_CHECK_EQ(a, b) PW_CHECK_OP(a, ==, b)
#define PW_CHECK_LT(a, b) PW_CHECK_OP(a, <, b)
#define PW_CHECK_LE(a, b) PW_CHECK_OP(a, <=, b)

}  // namespace pipewright
