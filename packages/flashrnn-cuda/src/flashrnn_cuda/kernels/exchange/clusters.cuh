// On the way back: the CTAs of a tile form clusters (compute capability 9.0 and up). A CTA gathers, through L2, the gates of
// those that have its place in the other clusters, multiplies them with what they contribute to the units of its own cluster,
// and the cluster adds up through shared memory. So a CTA fetches MEMBERS times fewer gates than in a grid, and is sent sums
// in their stead. A cooperative launch keeps all clusters running. What the interface means: local.cuh.
#pragma once

#include "exchange/cluster.cuh"
#include "exchange/grid.cuh"

namespace flashrnn {

template <int CTAS_, int MEMBERS>
struct Clusters {
  static constexpr int CTAS = CTAS_, GATHERS = CTAS / MEMBERS;
  using Across = Grid<GATHERS, MEMBERS>;
  using Within = Cluster<MEMBERS>;
  static __device__ __forceinline__ int rank() { return int(blockIdx.x % CTAS); }
  static __device__ __forceinline__ int group() { return int(blockIdx.x / CTAS); }
  template <int UNITS>
  static __device__ __forceinline__ int gathered(int x) {
    return (x / UNITS * MEMBERS + Within::rank()) * UNITS + x % UNITS;
  }

  template <class T, int UNITS, int PARTS, int COLUMNS>
  using GatherGates = typename Across::template GatherGates<T, UNITS, PARTS, COLUMNS>;
  template <int UNITS, int BLOCKS, int SPLIT, int COLUMNS>
  using Reduce = typename Within::template Reduce<UNITS, BLOCKS, SPLIT, COLUMNS>;
};

}  // namespace flashrnn
