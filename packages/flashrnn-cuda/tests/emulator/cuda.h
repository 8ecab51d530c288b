// What the kernels know from CUDA, for g++: its words, and each PTX instruction they use as a function that is named after it.
// translate.py makes calls of these functions out of inline PTX; their arguments are the instruction's operands, in order.
#pragma once

#include <cmath>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __align__(bytes) alignas(bytes)
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define threadIdx (emulator::here->thread)
#define blockIdx (emulator::here->block)
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid)

namespace emulator {

using uint = unsigned int;
using ushort = unsigned short;

struct Index {
  uint x, y, z;
};

// Where a thread is.
struct Place {
  Index thread, block;
};

extern const Place* here;
extern Index block_size, grid;

char* shared_memory();  // of the CTA

}  // namespace emulator

struct float2 {
  float x, y;
};

inline int min(int x, int y) { return x < y ? x : y; }
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

void __syncthreads();
void __syncwarp();
float __shfl_xor_sync(unsigned mask, float x, int lanes);
long long clock64();
unsigned long __cvta_generic_to_shared(const void* p);

namespace ptx {

using emulator::uint, emulator::ushort;

void ex2_approx_ftz_f32(float& d, float a);
void lg2_approx_ftz_f32(float& d, float a);
void rcp_approx_ftz_f32(float& d, float a);
void tanh_approx_f32(float& d, float a);

void cvt_f32_f16(float& d, ushort a);
void cvt_rn_f16_f32(ushort& d, float a);
void cvt_rn_bf16_f32(ushort& d, float a);
void cvt_rn_f16x2_f32(uint& d, float upper, float lower);
void cvt_rn_bf16x2_f32(uint& d, float upper, float lower);
void cvt_rna_tf32_f32(uint& d, float a);

void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3, uint a0, uint a1, uint a2,
                                                         uint a3, uint b0, uint b1, float c0, float c1, float c2, float c3);
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float& d0, float& d1, float& d2, float& d3, uint a0, uint a1, uint a2,
                                                       uint a3, uint b0, uint b1, float c0, float c1, float c2, float c3);
void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(float& d0, float& d1, float& d2, float& d3, uint a0, uint a1, uint a2,
                                                        uint a3, uint b0, uint b1, float c0, float c1, float c2, float c3);
void movmatrix_sync_aligned_m8n8_trans_b16(uint& d, uint a);
void ldmatrix_sync_aligned_m8n8_x2_shared_b16(uint& d0, uint& d1, uint address);
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint& d0, uint& d1, uint& d2, uint& d3, uint address);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint& d0, uint& d1, uint& d2, uint& d3, uint address);

void cp_async_cg_shared_global(uint to, const void* from, int bytes);
void cp_async_ca_shared_global(uint to, const void* from, int bytes);
void cp_async_commit_group();
void cp_async_wait_group(int pending);

void ld_global_nc_v4_u32(uint& d0, uint& d1, uint& d2, uint& d3, const void* from);
void ld_global_cg_v4_u32(uint& d0, uint& d1, uint& d2, uint& d3, const void* from);
void ld_relaxed_gpu_global_v4_b32(uint& d0, uint& d1, uint& d2, uint& d3, const void* from);
void ld_acquire_gpu_global_u32(uint& d, const void* from);
void st_relaxed_gpu_global_b32(void* to, uint a);
void st_relaxed_gpu_global_v4_b32(void* to, uint a0, uint a1, uint a2, uint a3);
void red_release_gpu_global_add_u32(void* to, uint a);
void fence_acq_rel_gpu();

void bar_sync(int barrier, int threads);
void bar_arrive(int barrier, int threads);
void barrier_cluster_arrive_release_aligned();
void barrier_cluster_wait_acquire_aligned();

void mapa_shared_cluster_u32(uint& d, uint address, int rank);
void mbarrier_init_shared_cta_b64(uint address, int count);
void fence_mbarrier_init_release_cluster();
void mbarrier_arrive_expect_tx_shared_cta_b64(uint address, int bytes);
void mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(bool& done, uint address, int parity);
void st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_b32(uint to, uint a0, uint a1, uint a2, uint a3, uint mbarrier);

}  // namespace ptx

// What the emulator calls: a kernel, given the bytes of its one argument; and how many they are.
#define EMULATED(kernel)                                                                                    \
  template <class Arguments>                                                                                \
  void emulated_call(void (*function)(Arguments), const void* bytes) {                                      \
    function(*static_cast<const Arguments*>(bytes));                                                        \
  }                                                                                                         \
  template <class Arguments>                                                                                \
  int emulated_size(void (*)(Arguments)) {                                                                  \
    return sizeof(Arguments);                                                                               \
  }                                                                                                         \
  extern "C" void emulated_kernel(const void* bytes) { emulated_call(kernel, bytes); }                      \
  extern "C" int emulated_argument_size() { return emulated_size(kernel); }
