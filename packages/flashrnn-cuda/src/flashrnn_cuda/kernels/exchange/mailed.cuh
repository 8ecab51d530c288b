// On the way back of 8 batch rows: a grid whose warps get the gates right out of the mailbox, as they get h on the way forward.
// Slower than through shared memory where there are several gates, but nothing of them has to fit there.
#pragma once

#include "exchange/grid.cuh"

namespace flashrnn {

template <int CTAS>
struct Mailed : Grid<CTAS> {
  template <class T, int UNITS, int PARTS, int COLUMNS>
  using GatherGates = typename Grid<CTAS>::template Mail<T, UNITS, PARTS>;
};

}  // namespace flashrnn
