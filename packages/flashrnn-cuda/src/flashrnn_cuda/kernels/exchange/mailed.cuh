// A grid whose warps get what they multiply with right out of the mailbox. On the way back that is slower than through shared
// memory where there are several gates, but nothing of them has to fit there.
#pragma once

#include "exchange/grid.cuh"

namespace flashrnn {

template <int CTAS>
struct Mailed : Grid<CTAS> {
  template <class T, int UNITS, int PARTS, int COLUMNS>
  using Gather = typename Grid<CTAS>::template Mail<T, UNITS, PARTS, COLUMNS>;
  template <class T, int UNITS, int PARTS, int COLUMNS>
  using GatherGates = Gather<T, UNITS, PARTS, COLUMNS>;
};

}  // namespace flashrnn
