// The instructions, as the PTX ISA describes them.
#include <algorithm>

#include "machine.h"

using namespace emulator;

namespace {

// Run `all`, given what each lane has brought, once all lanes of the warp are here.
template <class Lane, class All>
void together(const char* instruction, Lane& mine, All all) {
  Warp& warp = *me().warp;
  if (warp.arrived > 0 && std::strcmp(warp.instruction, instruction) != 0)
    fail("lanes of a warp in %s, others in %s", warp.instruction, instruction);
  warp.instruction = instruction;
  warp.brought[my_lane()] = &mine;
  if (++warp.arrived < WARP) {
    wait(instruction);
    return;
  }
  Lane* lanes[WARP];
  for (int i = 0; i < WARP; i++) lanes[i] = static_cast<Lane*>(warp.brought[i]);
  all(lanes);
  warp.arrived = 0;
  for (Thread& thread : warp.threads)
    if (&thread != &me()) wake(thread);
}

float without_denormals(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x; }

// ----------------------------------------------------------------------------------------------------------------- types

constexpr ushort NAN_16 = 0x7fff;

float from_bf16(ushort bits) { return __uint_as_float(uint(bits) << 16); }

ushort to_bf16(float x) {
  if (std::isnan(x)) return NAN_16;
  const uint bits = __float_as_uint(x);
  return ushort((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_f16(ushort bits) {
  const float size = (bits & 0x7c00) == 0x7c00 ? ((bits & 0x3ff) != 0 ? NAN : INFINITY)
                                               : __uint_as_float(uint(bits & 0x7fff) << 13) * 0x1p112f;
  return (bits & 0x8000) != 0 ? -size : size;
}

ushort to_f16(float x) {
  if (std::isnan(x)) return NAN_16;
  const ushort sign = ushort(__float_as_uint(x) >> 16 & 0x8000);
  const float size = std::fabs(x);
  if (size >= 65520.f) return sign | 0x7c00;
  const int exponent = std::max(std::ilogb(size), -14);  // zero has a very small one
  const int steps = int(std::nearbyint(std::ldexp(size, 10 - exponent)));  // of the last place; 1 << 10, or less if denormal
  return ushort(sign | (((exponent + 14) << 10) + steps));
}

float first(uint word, float (*from)(ushort)) { return from(ushort(word & 0xffff)); }
float second(uint word, float (*from)(ushort)) { return from(ushort(word >> 16)); }

// -------------------------------------------------------------------------------------------------------------- matrices

struct Mma {
  float* d[4];
  uint a[4], b[2];
  float c[4];
};

// PER_WORD elements a word of k; `element` gets one out of a word.
template <int PER_WORD, class Element>
void mma(Mma* const* lanes, Element element) {
  constexpr int K = 8 * PER_WORD;
  double a[16][K], b[8][K];
  for (int lane = 0; lane < WARP; lane++)
    for (int i = 0; i < PER_WORD; i++) {
      const Mma& x = *lanes[lane];
      const int row = lane / 4, k = lane % 4 * PER_WORD + i;
      for (int j = 0; j < 4; j++) a[row + j % 2 * 8][k + j / 2 * 4 * PER_WORD] = element(x.a[j], i);
      for (int j = 0; j < 2; j++) b[row][k + j * 4 * PER_WORD] = element(x.b[j], i);
    }
  for (int lane = 0; lane < WARP; lane++)
    for (int j = 0; j < 4; j++) {
      const int row = lane / 4 + j / 2 * 8, column = lane % 4 * 2 + j % 2;
      double sum = lanes[lane]->c[j];
      for (int k = 0; k < K; k++) sum += a[row][k] * b[column][k];
      *lanes[lane]->d[j] = float(sum);
    }
}

struct Load {
  uint* d[4];
  uint address;
};

// COUNT matrices of 8 rows of 16 bytes: lane i names row i, and gets words or, turned, elements of two rows.
template <int COUNT>
void ldmatrix(Load* const* lanes, bool turned) {
  for (int matrix = 0; matrix < COUNT; matrix++) {
    ushort x[8][8];
    for (int row = 0; row < 8; row++) std::memcpy(x[row], in_shared(lanes[matrix * 8 + row]->address, 16, true), 16);
    for (int lane = 0; lane < WARP; lane++) {
      const int row = lane / 4, i = lane % 4 * 2;
      *lanes[lane]->d[matrix] = turned ? x[i][row] | uint(x[i + 1][row]) << 16 : x[row][i] | uint(x[row][i + 1]) << 16;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- memory

void copy_async(uint to, const void* from, int bytes) {
  if (reinterpret_cast<size_t>(from) % bytes != 0) fail("cp.async from %p, not a multiple of %d", from, bytes);
  Thread& thread = me();
  thread.copies.push_back({in_shared(to, bytes, true), static_cast<const char*>(from), bytes, thread.groups + 1});
  if (random(4) != 0) return;  // else it comes early
  const Copy copy = thread.copies.back();
  std::memcpy(copy.to, copy.from, copy.bytes);
  thread.copies.pop_back();
}

void load(const void* from, uint* words, int count) {
  if (reinterpret_cast<size_t>(from) % (4 * count) != 0) fail("a load from %p, not a multiple of %d", from, 4 * count);
  std::memcpy(words, from, 4 * count);
}

void load_while_others_store(const char* instruction, const void* from, uint* words, int count) {
  if (random(4) != 0) rest(instruction);
  flush(static_cast<const char*>(from), 4 * count);
  load(from, words, count);
}

Mbarrier& mbarrier(uint address, bool own) { return *reinterpret_cast<Mbarrier*>(in_shared(address, 8, own)); }

// ------------------------------------------------------------------------------------------------------------- barriers

// Whether all are there.
bool arrive_at(int index, int threads) {
  if (index < 0 || index >= BARRIERS || threads % WARP != 0) fail("no barrier %d for %d threads", index, threads);
  Barrier& barrier = my_cta().barriers[index];
  if (barrier.arrived > 0 && barrier.expected != threads)
    fail("barrier %d for %d threads and for %d", index, barrier.expected, threads);
  barrier.expected = threads;
  if (++barrier.arrived < threads) return false;
  barrier.arrived = 0;
  wake_all(barrier.waiting);
  return true;
}

void synchronize(const char* instruction, int index, int threads) {
  if (arrive_at(index, threads)) return;
  my_cta().barriers[index].waiting.push_back(&me());
  wait(instruction);
}

}  // namespace

void __syncthreads() { synchronize("__syncthreads", 0, block_size.x); }

void __syncwarp() {
  int nothing;
  together("__syncwarp", nothing, [](int**) {});
}

float __shfl_xor_sync(unsigned, float x, int lanes) {
  struct Swap {
    float x;
    int lanes;
    float other;
  } mine = {x, lanes, 0.f};
  together("__shfl_xor_sync", mine, [](Swap** all) {
    for (int lane = 0; lane < WARP; lane++) all[lane]->other = all[lane ^ all[lane]->lanes]->x;
  });
  return mine.other;
}

long long clock64() {
  rest("clock64");
  return clock_now += 16;
}

unsigned long __cvta_generic_to_shared(const void* p) { return address_of(static_cast<const char*>(p)); }

namespace ptx {

void ex2_approx_ftz_f32(float& d, float a) { d = without_denormals(std::exp2(without_denormals(a))); }
void lg2_approx_ftz_f32(float& d, float a) { d = std::log2(without_denormals(a)); }
void rcp_approx_ftz_f32(float& d, float a) { d = without_denormals(1.f / without_denormals(a)); }
void tanh_approx_f32(float& d, float a) { d = std::tanh(a); }

void cvt_f32_f16(float& d, ushort a) { d = from_f16(a); }
void cvt_rn_f16_f32(ushort& d, float a) { d = to_f16(a); }
void cvt_rn_bf16_f32(ushort& d, float a) { d = to_bf16(a); }
void cvt_rn_f16x2_f32(uint& d, float upper, float lower) { d = uint(to_f16(upper)) << 16 | to_f16(lower); }
void cvt_rn_bf16x2_f32(uint& d, float upper, float lower) { d = uint(to_bf16(upper)) << 16 | to_bf16(lower); }
void cvt_rna_tf32_f32(uint& d, float a) { d = std::isnan(a) ? 0x7fffffff : (__float_as_uint(a) + 0x1000) & ~0x1fffu; }

#define MMA_OPERANDS                                                                                                  \
  float &d0, float &d1, float &d2, float &d3, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1, float c0, float c1, \
      float c2, float c3

#define MMA(name, per_word, element)                                                    \
  void name(MMA_OPERANDS) {                                                             \
    Mma mine = {{&d0, &d1, &d2, &d3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};    \
    together(#name, mine, [](Mma** all) { mma<per_word>(all, element); });              \
  }

MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, 2,
    [](uint word, int i) { return i == 0 ? first(word, from_bf16) : second(word, from_bf16); })
MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, 2,
    [](uint word, int i) { return i == 0 ? first(word, from_f16) : second(word, from_f16); })
// What has no room in the 19 bits of a tf32 is not read.
MMA(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, 1,
    [](uint word, int) { return __uint_as_float(word & ~0x1fffu); })

void movmatrix_sync_aligned_m8n8_trans_b16(uint& d, uint a) {
  struct Turn {
    uint* d;
    uint a;
  } mine = {&d, a};
  together(__func__, mine, [](Turn** all) {
    const auto element = [&](int row, int i) { return all[row * 4 + i / 2]->a >> i % 2 * 16 & 0xffff; };
    for (int lane = 0; lane < WARP; lane++)
      *all[lane]->d = element(lane % 4 * 2, lane / 4) | element(lane % 4 * 2 + 1, lane / 4) << 16;
  });
}

void ldmatrix_sync_aligned_m8n8_x2_shared_b16(uint& d0, uint& d1, uint address) {
  Load mine = {{&d0, &d1}, address};
  together(__func__, mine, [](Load** all) { ldmatrix<2>(all, false); });
}
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint& d0, uint& d1, uint& d2, uint& d3, uint address) {
  Load mine = {{&d0, &d1, &d2, &d3}, address};
  together(__func__, mine, [](Load** all) { ldmatrix<4>(all, false); });
}
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint& d0, uint& d1, uint& d2, uint& d3, uint address) {
  Load mine = {{&d0, &d1, &d2, &d3}, address};
  together(__func__, mine, [](Load** all) { ldmatrix<4>(all, true); });
}

void cp_async_cg_shared_global(uint to, const void* from, int bytes) { copy_async(to, from, bytes); }
void cp_async_ca_shared_global(uint to, const void* from, int bytes) { copy_async(to, from, bytes); }
void cp_async_commit_group() { me().groups++; }
void cp_async_wait_group(int pending) { finish_copies(pending); }

void ld_global_nc_v4_u32(uint& d0, uint& d1, uint& d2, uint& d3, const void* from) {
  uint d[4];
  load(from, d, 4);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
void ld_global_cg_v4_u32(uint& d0, uint& d1, uint& d2, uint& d3, const void* from) {
  ld_global_nc_v4_u32(d0, d1, d2, d3, from);
}
void ld_relaxed_gpu_global_v4_b32(uint& d0, uint& d1, uint& d2, uint& d3, const void* from) {
  uint d[4];
  load_while_others_store(__func__, from, d, 4);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
void ld_acquire_gpu_global_u32(uint& d, const void* from) { load_while_others_store(__func__, from, &d, 1); }

void st_relaxed_gpu_global_b32(void* to, uint a) { send({&my_cta(), static_cast<char*>(to), 4, {a}}); }
void st_relaxed_gpu_global_v4_b32(void* to, uint a0, uint a1, uint a2, uint a3) {
  if (reinterpret_cast<size_t>(to) % 16 != 0) fail("a store to %p, not a multiple of 16", to);
  send({&my_cta(), static_cast<char*>(to), 16, {a0, a1, a2, a3}});
}
void red_release_gpu_global_add_u32(void* to, uint a) {
  flush();
  *static_cast<uint*>(to) += a;
}
void fence_acq_rel_gpu() { flush(); }

void bar_sync(int barrier, int threads) { synchronize(__func__, barrier, threads); }
void bar_arrive(int barrier, int threads) { arrive_at(barrier, threads); }

void barrier_cluster_arrive_release_aligned() {
  flush();
  Cluster& cluster = *my_cta().cluster;
  me().cluster_phase = cluster.phase;
  if (++cluster.arrived < cluster.threads) return;
  cluster.arrived = 0;
  cluster.phase++;
  wake_all(cluster.waiting);
}
void barrier_cluster_wait_acquire_aligned() {
  Cluster& cluster = *my_cta().cluster;
  if (cluster.phase != me().cluster_phase) return;
  cluster.waiting.push_back(&me());
  wait(__func__);
}

void mapa_shared_cluster_u32(uint& d, uint address, int rank) {
  d = uint(rank + 1) << 24 | (address & 0xffffff);
  cta_of(d);
}
void mbarrier_init_shared_cta_b64(uint address, int count) {
  mbarrier(address, true) = {0, (unsigned char)count, (unsigned char)count, 0, Mbarrier::MARK};
}
void fence_mbarrier_init_release_cluster() {}
void mbarrier_arrive_expect_tx_shared_cta_b64(uint address, int bytes) {
  Mbarrier& barrier = mbarrier(address, true);
  barrier.bytes += bytes;
  barrier.pending--;
  barrier.complete();
}
void mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(bool& done, uint address, int parity) {
  Mbarrier& barrier = mbarrier(address, true);
  if (barrier.mark != Mbarrier::MARK) fail("an mbarrier that nobody has made");
  if (barrier.phase == parity) rest(__func__);
  done = barrier.phase != parity;
}
void st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_b32(uint to, uint a0, uint a1, uint a2, uint a3, uint barrier) {
  if (cta_of(to) != cta_of(barrier)) fail("st.async to one CTA, counted in another");
  send({&my_cta(), in_shared(to, 16, false), 16, {a0, a1, a2, a3}, cta_of(to), &mbarrier(barrier, false)});
}

}  // namespace ptx
