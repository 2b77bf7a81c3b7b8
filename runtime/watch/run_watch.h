// A run watched: in a terminal a screen that renews itself, elsewhere a line when something has changed.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/watch/run_reader.h"
#include "runtime/watch/terminal.h"

namespace pipewright {

/// Writes on standard output. Used by one thread.
class RunWatch {
 public:
  explicit RunWatch(std::filesystem::path folder);

  /// Looks, and shows what there is; cheap where the last look is less than half a second old.
  const RunView& look();
  /// Looks once more, and shows how things are now.
  const RunView& finish();
  bool has_shown() const { return began_; }  ///< something of a run
  bool on_terminal() const { return terminal_.has_value(); }
  /// Of a terminal: text of somebody else, above.
  void print_above(std::string_view text);
  /// What was written could not be read by anybody any more.
  bool is_unread() const { return unread_; }

  static constexpr std::chrono::milliseconds kEvery{500};
  /// A line without an event is as far from the one before.
  static constexpr std::chrono::seconds kLineEvery{10};

 private:
  using Clock = std::chrono::steady_clock;

  void show(bool last);
  void show_lines(bool last);
  void print(const std::string& line);

  RunReader reader_;
  RunView view_;
  std::optional<Terminal> terminal_;  // else lines
  Clock::time_point looked_{}, said_{};
  bool began_ = false;  // there has been something to see
  bool unread_ = false;
  int64_t told_events_ = 0, told_done_ = -1;
};

/// A mistyped path is nothing to wait for: InputError where the folder is not there and its parent neither,
/// or a folder beside it has a run and nearly its name (other digits are another run's name), or it is a
/// file.
void demand_place_of_run(const std::filesystem::path& folder);

/// How a run that has ended did so: nothing where it is done. RunError, or an Error with the exit code of an
/// interruption, that says why it failed.
void demand_done(const RunView& run);

}  // namespace pipewright
