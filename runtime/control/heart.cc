#include "runtime/control/heart.h"

#include "graph/file_watch.h"

namespace pipewright {

void Heart::begin(Board board) {
  board.set_process(rank_, this_process());
  board.set_beat(rank_, Beat{});
}

ProgressNow Heart::beat(Board board) {
  Beat beat;
  beat.number = ++beats_;
  if (Progress* progress = progress_) beat.progress = progress->now();
  beat.work = beat.progress.begun + bytes_to_disk();
  board.set_beat(rank_, beat);
  return beat.progress;
}

void Heart::stop(Board board) {
  Beat last;
  last.number = ++beats_;
  last.finished = true;
  board.set_beat(rank_, last);
}

}  // namespace pipewright
