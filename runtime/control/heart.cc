#include "runtime/control/heart.h"

#include "graph/file_watch.h"

namespace pipewright {

void Heart::begin(Store& store) {
  store.set(process_key(rank_), this_process().to_text());
  store.set(beat_key(rank_), Beat{}.to_text());
}

ProgressNow Heart::beat(Store& store) {
  Beat beat;
  beat.number = ++beats_;
  if (Progress* progress = progress_) beat.progress = progress->now();
  beat.work = beat.progress.begun + bytes_to_disk();
  store.set(beat_key(rank_), beat.to_text());
  return beat.progress;
}

void Heart::stop(Store& store) {
  Beat last;
  last.number = ++beats_;
  last.finished = true;
  store.set(beat_key(rank_), last.to_text());
}

}  // namespace pipewright
