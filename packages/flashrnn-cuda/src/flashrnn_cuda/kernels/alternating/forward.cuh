// The alternating forward pass: in every step a CTA computes the recurrent product of its items, R read from L2, then their
// pointwise step. h goes to the next step through two buffers in global memory, the float32 states stay in a third.
#pragma once

#include "alternating/items.cuh"
#include "alternating/product.cuh"
#include "common/step.cuh"

namespace flashrnn {

struct AlternatingForwardArguments {
  Sizes sizes;
  Weights weights;  // rows of whole chunks
  States initial, last;
  Masks masks;
  Arrays input;          // Wx
  Arrays states, saved;  // out
  char* h;               // [2, heads, batch, chunks], what the product reads; zeros at first
  float* carried;        // [state, batch, head, unit]
  unsigned* arrivals;    // [groups], zeros at first
  int64 h_bytes;         // of a row of h
  float clip;            // of h; negative: none
};

// Config: T, Cell, BLOCKS (of 8 units an item), COLUMNS (blocks of 8 batch rows an item), MASKED, SAVE.
template <class Config>
struct AlternatingForward {
  using T = typename Config::T;
  using Cell = typename Config::Cell;
  static constexpr int BLOCKS = Config::BLOCKS, UNITS = 8 * BLOCKS, ROWS = 8 * Config::COLUMNS, ELEMENTS = UNITS * ROWS;
  static constexpr int PER_THREAD = (ELEMENTS + THREADS - 1) / THREADS;
  static constexpr int GATES = Cell::GATES, STATES = Cell::STATES, RECURRENT = Cell::RECURRENT_GATES;
  static constexpr int FIRST_INPUT = GATES - Cell::INPUT_GATES, FIRST_BIAS = GATES - Cell::BIAS_GATES;
  using Multiply = Product<T, (RECURRENT * BLOCKS + 1) / 2, Config::COLUMNS>;
  static constexpr int SHARED_BYTES = Multiply::SHARED_BYTES;

  const AlternatingForwardArguments& args;
  const Sizes& sizes = args.sizes;

  __device__ __forceinline__ char* h(int t, int head, int b) const {
    return args.h + ((int64(t & 1) * sizes.heads + head) * sizes.batch + b) * args.h_bytes;
  }
  __device__ __forceinline__ float& carried(int s, int b, int head, int d) const {
    return args.carried[((int64(s) * sizes.batch + b) * sizes.heads + head) * sizes.head_dim + d];
  }
  __device__ __forceinline__ bool padding(int t, int b) const {
    return Config::MASKED && t >= args.masks.length(b, sizes.time);
  }
  __device__ __forceinline__ bool resets(int t, int b) const {
    return Config::MASKED && t < sizes.time && !padding(t, b) && args.masks.reset(b, t);
  }
  // What step t's product reads.
  __device__ __forceinline__ void hand_on(int t, int b, int head, int d, float x) const {
    reinterpret_cast<T*>(h(t, head, b))[d] = from_float<T>(resets(t, b) ? 0.f : x);
  }

  // f(k, b, d, row of the item, unit of the item) for each element that exists, the k-th of this thread.
  template <class F>
  __device__ __forceinline__ void for_elements(const Item& item, F f) const {
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
      const int i = threadIdx.x + k * THREADS, row = i / UNITS, unit = i % UNITS;
      const int b = item.first_row + row, d = item.first_unit + unit;
      if (i < ELEMENTS && b < sizes.batch && d < sizes.head_dim) f(k, b, d, row, unit);
    }
  }

  __device__ __forceinline__ void start(const Item& item) const {
    for_elements(item, [&](int, int b, int d, int, int) {
#pragma unroll
      for (int s = 0; s < STATES; s++) carried(s, b, item.head, d) = args.initial.load(s, b, item.head, d);
      hand_on(0, b, item.head, d, carried(0, b, item.head, d));
    });
  }

  __device__ __forceinline__ void multiply(const Multiply& product, const Item& item, int t) const {
    const int r = threadIdx.x % 32 / 4;
    product.compute(
        int(args.h_bytes / CHUNK),
        [&](int q) -> const char* {
          const int d = item.first_unit + q % BLOCKS * 8 + r;
          if (q / BLOCKS >= RECURRENT || d >= sizes.head_dim) return nullptr;
          return args.weights.at(q / BLOCKS, item.head, d, 0);
        },
        [&](int c) {
          const int b = item.first_row + 8 * c + r;
          return h(t, item.head, b < sizes.batch ? b : item.first_row);
        });
  }

  // What a step needs besides the product: fetched before the wait for it.
  struct Element {
    float gate[GATES], state[STATES];
    bool padding, reset;
  };

  __device__ __forceinline__ void fetch(Element (&elements)[PER_THREAD], const Item& item, int t) const {
    for_elements(item, [&](int k, int b, int d, int, int) {
      Element& x = elements[k];
      x.padding = padding(t, b);
      x.reset = resets(t, b);
#pragma unroll
      for (int g = 0; g < GATES; g++) {
        x.gate[g] = load_bias<T>(args.weights, sizes, g - FIRST_BIAS, item.head, d);
        if (g >= FIRST_INPUT && !x.padding)
          x.gate[g] += to_float(reinterpret_cast<const T*>(args.input.at(g - FIRST_INPUT, b, t, item.head))[d]);
      }
#pragma unroll
      for (int s = 0; s < STATES; s++) x.state[s] = carried(s, b, item.head, d);
    });
  }

  __device__ __forceinline__ void pointwise(Element (&elements)[PER_THREAD], const Multiply& product, const Item& item,
                                            int t) const {
    for_elements(item, [&](int k, int b, int d, int row, int unit) {
      Element& x = elements[k];
      float saved[SAVED_SIZE<Cell>], out[STATES];
#pragma unroll
      for (int g = 0; g < RECURRENT; g++) x.gate[g] += product.element(g * BLOCKS + unit / 8, unit % 8, row);
      forward_step<Cell>(x.gate, x.state, saved, out, x.padding, x.reset, args.clip);
      hand_on(t + 1, b, item.head, d, x.state[0]);
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        carried(s, b, item.head, d) = x.state[s];
        reinterpret_cast<T*>(args.states.at(s, b, t, item.head))[d] = from_float<T>(out[s]);
        if (t == sizes.time - 1) args.last.store(s, b, item.head, d, x.state[s]);
      }
      if (Config::SAVE)
#pragma unroll
        for (int i = 0; i < Cell::SAVED; i++)
          reinterpret_cast<T*>(args.saved.at(i, b, t, item.head))[d] = from_float<T>(saved[i]);
    });
  }

  __device__ __forceinline__ void run(float* shared) const {
    const Items<UNITS, ROWS> items(sizes);
    const Arrivals arrivals{args.arrivals};
    const Multiply product{shared};
    for (int64 i = blockIdx.x; i < items.count(); i += gridDim.x) {
      start(items[i]);
      arrivals.arrive(items[i].group);
    }
    for (int t = 0; t < sizes.time; t++)
      for (int64 i = blockIdx.x; i < items.count(); i += gridDim.x) {
        const Item item = items[i];
        Element elements[PER_THREAD];
        fetch(elements, item, t);
        arrivals.wait(item.group, unsigned(t + 1) * items.blocks);
        multiply(product, item, t);
        pointwise(elements, product, item, t);
        arrivals.arrive(item.group);
      }
  }
};

}  // namespace flashrnn
