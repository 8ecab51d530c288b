// The mailbox of a tile of batch rows in global memory: a ring of SLOTS buffers whose words are EMPTY until their owner has
// written them. The data are the flag, and neither a fence nor a barrier stands between the CTAs.
//
// A CTA that has all of buffer(i - 1) knows that every CTA has left buffer(i - 2): each may empty its own part of that, and does
// so for CLEARED buffers at a time. All see them empty (fence, barrier) when they have what was sent CLEARED + 2 steps later;
// they look there again SLOTS steps after the oldest of these was sent.
#pragma once

#include "common/memory.cuh"

namespace flashrnn {

constexpr int SLOTS = 16, CLEARED = 4;
constexpr uint EMPTY = 0xffffffff, QUIET_NAN = 0x7fffffff;  // rounding makes no NaN but the quiet one

__device__ __forceinline__ Piece16 load_mail(const char* from) {
  Piece16 piece;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.words[0]), "=r"(piece.words[1]), "=r"(piece.words[2]), "=r"(piece.words[3])
               : "l"(from)
               : "memory");
  return piece;
}

__device__ __forceinline__ void store_mail(char* to, const Piece16& piece) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(piece.words[0]), "r"(piece.words[1]),
               "r"(piece.words[2]), "r"(piece.words[3])
               : "memory");
}

__device__ __forceinline__ void store_mail(char* to, uint word) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

__device__ __forceinline__ uint not_empty(uint word) { return word == EMPTY ? QUIET_NAN : word; }

__device__ __forceinline__ bool has_arrived(const Piece16& piece) {
  return piece.words[0] != EMPTY && piece.words[1] != EMPTY && piece.words[2] != EMPTY && piece.words[3] != EMPTY;
}

// A look at what is not there yet costs as much as one at what is, and slows down what is on its way: so none comes before the
// last own part has been on its way for so many clocks. How many make a step shortest was measured on an H200: more, where there
// is more to look at.
template <int CLOCKS>
__device__ __forceinline__ void pause() {
  const long long start = clock64();
  while (clock64() - start < CLOCKS) {
  }
}

static_assert(SLOTS > 2 * CLEARED + 3, "what is cleared is seen in time");

// By a warp of a CTA that has all of buffer(i - 1): empties what this CTA has sent in the steps i - 1 - CLEARED to i - 2, COUNT
// pieces each; piece(i, x) is where one of them lies.
template <int COUNT, class Where>
__device__ __forceinline__ void clear_mail(int i, int lane, Where piece) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");  // what was emptied before
#pragma unroll
  for (int back = 2; back < 2 + CLEARED; back++)
    if (i >= back)
      for (int x = lane; x < COUNT; x += 32) store_mail(piece(i - back, x), {EMPTY, EMPTY, EMPTY, EMPTY});
}

}  // namespace flashrnn
