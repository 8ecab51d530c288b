// The alternating backward pass: in every step, last one first, a CTA computes the product of R^T with the gate gradients of the
// step after for its items, then their pointwise step. Gate gradients go to the next step through two buffers in global
// memory, the float32 gradients of the states stay in a third. The gradients of R and b are made after this kernel.
#pragma once

#include "alternating/items.cuh"
#include "alternating/product.cuh"
#include "common/step.cuh"

namespace flashrnn {

struct AlternatingBackwardArguments {
  Sizes sizes;
  Weights weights;                    // rows of R^T, of whole chunks
  States initial, d_last, d_initial;  // d_initial: out; null: not asked for
  Masks masks;
  Arrays states, saved;
  Arrays d_states;      // from outside; null: zero
  Arrays d_input;       // out, of the gates that have an input part: dWx
  Arrays d_others;      // out, of the gates before them
  char* handed;         // [2, heads, batch, chunks], gate gradients that the product reads; zeros at first
  float* carried;       // [state, batch, head, unit]
  unsigned* arrivals;   // [groups], zeros at first
  int64 handed_bytes;   // of a row of `handed`
  float stored_clip;    // the clip of h as it looks in T; negative: none
  float gradient_clip;  // negative: none
  int cut;              // no gradient through R
};

// Config: T, Cell, BLOCKS (of 8 units an item), COLUMNS (blocks of 8 batch rows an item), MASKED.
template <class Config>
struct AlternatingBackward {
  using T = typename Config::T;
  using Cell = typename Config::Cell;
  static constexpr int BLOCKS = Config::BLOCKS, UNITS = 8 * BLOCKS, ROWS = 8 * Config::COLUMNS, ELEMENTS = UNITS * ROWS;
  static constexpr int PER_THREAD = (ELEMENTS + THREADS - 1) / THREADS;
  static constexpr int GATES = Cell::GATES, STATES = Cell::STATES, RECURRENT = Cell::RECURRENT_GATES;
  static constexpr int FIRST_INPUT = GATES - Cell::INPUT_GATES;
  static constexpr unsigned READ = Cell::READS_OLD | Cell::READS_NEW | 1u;  // h, for the clip
  using Multiply = Product<T, (BLOCKS + 1) / 2, Config::COLUMNS>;
  static constexpr int SHARED_BYTES = Multiply::SHARED_BYTES;

  const AlternatingBackwardArguments& args;
  const Sizes& sizes = args.sizes;

  __device__ __forceinline__ char* handed(int t, int head, int b) const {
    return args.handed + ((int64(t & 1) * sizes.heads + head) * sizes.batch + b) * args.handed_bytes;
  }
  __device__ __forceinline__ float& carried(int s, int b, int head, int d) const {
    return args.carried[((int64(s) * sizes.batch + b) * sizes.heads + head) * sizes.head_dim + d];
  }
  __device__ __forceinline__ bool padding(int t, int b) const {
    return Config::MASKED && t >= args.masks.length(b, sizes.time);
  }
  __device__ __forceinline__ bool resets(int t, int b) const {
    return Config::MASKED && !padding(t, b) && args.masks.reset(b, t);
  }
  // A state after step t, as it is stored; t = -1: the initial one.
  __device__ __forceinline__ float stored(int s, int t, int b, int head, int d) const {
    return t < 0 ? args.initial.load(s, b, head, d) : to_float(reinterpret_cast<const T*>(args.states.at(s, b, t, head))[d]);
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

  __device__ __forceinline__ void multiply(const Multiply& product, const Item& item, int t) const {
    const int r = threadIdx.x % 32 / 4;
    product.compute(
        int(args.handed_bytes / CHUNK),
        [&](int q) -> const char* {
          const int d = item.first_unit + q * 8 + r;
          return q < BLOCKS && d < sizes.head_dim ? args.weights.at(0, item.head, d, 0) : nullptr;
        },
        [&](int c) {
          const int b = item.first_row + 8 * c + r;
          return handed(t, item.head, b < sizes.batch ? b : item.first_row);
        });
  }

  // What step t needs besides the product: fetched before the wait for it. Of time -1, the initial states, only d_state.
  struct Element {
    float d_state[STATES], outside[STATES], saved[SAVED_SIZE<Cell>], old[STATES], now[STATES];
    bool padding, reset;
  };

  __device__ __forceinline__ void fetch(Element (&elements)[PER_THREAD], const Item& item, int t) const {
    for_elements(item, [&](int k, int b, int d, int, int) {
      Element& x = elements[k];
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        if (t < sizes.time - 1)
          x.d_state[s] = carried(s, b, item.head, d);
        else
          x.d_state[s] = has_bit(Cell::CONSTANT, s) ? 0.f : args.d_last.load(s, b, item.head, d);
      }
      if (t < 0) return;
      x.padding = padding(t, b);
      x.reset = resets(t, b);
#pragma unroll
      for (int i = 0; i < Cell::SAVED; i++)
        x.saved[i] = to_float(reinterpret_cast<const T*>(args.saved.at(i, b, t, item.head))[d]);
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        const bool flows = !has_bit(Cell::CONSTANT, s) && !x.padding && args.d_states.data != nullptr;
        x.outside[s] = flows ? to_float(reinterpret_cast<const T*>(args.d_states.at(s, b, t, item.head))[d]) : 0.f;
        x.old[s] = has_bit(READ, s) ? stored(s, t - 1, b, item.head, d) : 0.f;
        x.now[s] = has_bit(READ, s) ? stored(s, t, b, item.head, d) : 0.f;
      }
    });
  }

  // What comes out of step t + 1.
  __device__ __forceinline__ void take(float (&d_state)[STATES], const Multiply& product, int t, int b, int row,
                                       int unit) const {
    if (t < sizes.time - 1)
      receive(d_state, args.cut ? 0.f : product.element(unit / 8, unit % 8, row), padding(t + 1, b), resets(t + 1, b),
              args.gradient_clip);
  }

  __device__ __forceinline__ void pointwise(Element (&elements)[PER_THREAD], const Multiply& product, const Item& item,
                                            int t) const {
    for_elements(item, [&](int k, int b, int d, int row, int unit) {
      Element& x = elements[k];
      float d_gate[GATES];
      take(x.d_state, product, t, b, row, unit);
      backward_step<Cell>(x.d_state, d_gate, x.outside, x.saved, x.old, x.now, x.padding, x.reset, args.stored_clip);
#pragma unroll
      for (int s = 0; s < STATES; s++) carried(s, b, item.head, d) = x.d_state[s];
#pragma unroll
      for (int g = 0; g < GATES; g++) {
        const T value = from_float<T>(d_gate[g]);
        if (g < RECURRENT) reinterpret_cast<T*>(handed(t - 1, item.head, b))[g * sizes.head_dim + d] = value;
        if (g < FIRST_INPUT) {
          if (args.d_others.data != nullptr) reinterpret_cast<T*>(args.d_others.at(g, b, t, item.head))[d] = value;
        } else if (args.d_input.data != nullptr) {
          reinterpret_cast<T*>(args.d_input.at(g - FIRST_INPUT, b, t, item.head))[d] = value;
        }
      }
    });
  }

  __device__ __forceinline__ void finish(Element (&elements)[PER_THREAD], const Multiply& product, const Item& item) const {
    for_elements(item, [&](int k, int b, int d, int row, int unit) {
      take(elements[k].d_state, product, -1, b, row, unit);
#pragma unroll
      for (int s = 0; s < STATES; s++) args.d_initial.store(s, b, item.head, d, elements[k].d_state[s]);
    });
  }

  __device__ __forceinline__ void run(float* shared) const {
    const Items<UNITS, ROWS> items(sizes);
    const Arrivals arrivals{args.arrivals};
    const Multiply product{shared};
    for (int t = sizes.time - 1; t >= -1; t--) {
      if (t < 0 && args.d_initial.data == nullptr) break;
      for (int64 i = blockIdx.x; i < items.count(); i += gridDim.x) {
        const Item item = items[i];
        Element elements[PER_THREAD];
        fetch(elements, item, t);
        if (t < sizes.time - 1) {
          arrivals.wait(item.group, unsigned(sizes.time - 1 - t) * items.blocks);
          if (!args.cut) multiply(product, item, t);
        }
        if (t < 0)
          finish(elements, product, item);
        else
          pointwise(elements, product, item, t);
        arrivals.arrive(item.group);
      }
    }
  }
};

}  // namespace flashrnn
