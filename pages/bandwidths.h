// Which of several plans is the fastest, by how fast the links are.
#pragma once

#include <vector>

#include "pages/charts.h"
#include "pages/page.h"

namespace pipewright {

/// A chart, a table, and with scripts a link to make faster or slower. Of each plan the seconds of a
/// minibatch by bandwidth of the outermost links in bytes per second, all at the same ones, ascending; NaN:
/// it cannot be run so. `now`: the bandwidth that was asked about. CheckError for two plans with other
/// numbers of points.
void add_bandwidths(Page* page, const std::vector<Curve>& plans, double now);

}  // namespace pipewright
