// A GPU in one thread of the CPU. Each of its threads is a fiber with a stack of its own, which runs until it has to wait. Which
// one runs next is random, and so is when what is on its way arrives: a seed makes a schedule, and some are unfair on purpose.
#pragma once

#include <csetjmp>
#include <vector>

#include "cuda.h"

namespace emulator {

struct Cta;
struct Warp;

constexpr int WARP = 32, BARRIERS = 16;

// A copy into shared memory that nobody has waited for yet, and of which of its thread's groups it is.
struct Copy {
  char* to;
  const char* from;
  int bytes, group;
};

struct Thread : Place {
  Warp* warp = nullptr;
  char* stack = nullptr;
  bool has_begun = false;
  const char* where = "its beginning";  // what it waits in
  jmp_buf registers;
  std::vector<Copy> copies;
  int groups = 0;         // of copies, committed
  int cluster_phase = 0;  // of the barrier that it has arrived at last
};

// Lanes meet in an instruction: each leaves what it brings, the last does it for all.
struct Warp {
  Cta* cta;
  int index;
  Thread threads[WARP];
  std::vector<Thread*> ready;
  bool is_slow = false;
  const char* instruction = nullptr;
  int arrived = 0;
  void* brought[WARP];
};

struct Barrier {
  int arrived = 0, expected = 0;
  std::vector<Thread*> waiting;
};

struct Cluster {
  std::vector<Cta*> ctas;
  int threads = 0, arrived = 0, phase = 0;
  std::vector<Thread*> waiting;
};

struct Cta {
  Cluster* cluster;
  int rank;       // in the cluster
  int alive = 0;  // threads
  std::vector<Warp> warps;
  std::vector<char> guarded;  // shared memory between two stretches that nobody may write
  Barrier barriers[BARRIERS];

  char* shared();
};

// 64 bits of shared memory, as the hardware keeps them its own way.
struct Mbarrier {
  int bytes;  // still to come
  unsigned char expected, pending, phase, mark;

  static constexpr unsigned char MARK = 0x5a;
  void complete();
};

// A store that its thread has left behind: into global memory, or into the shared memory of `cta` and counted there.
struct Store {
  Cta* from;
  char* to;
  int bytes;
  uint words[4];
  Cta* cta = nullptr;
  Mbarrier* counter = nullptr;
};

extern long long clock_now;

Thread& me();
Cta& my_cta();
int my_lane();
uint random(uint below);
[[noreturn]] void fail(const char* format, ...);

void wait(const char* where);  // until woken
void wake(Thread& thread);
void wake_all(std::vector<Thread*>& threads);
void rest(const char* where);  // let others run before this thread looks again

// `address` as the CTA has it: checked, and where it is.
char* in_shared(uint address, int bytes, bool own);
Cta* cta_of(uint address);
uint address_of(const char* p);

void send(const Store& store);
void flush(const char* to, int bytes);  // what this CTA has sent to these bytes
void flush();                           // what this CTA has sent anywhere
void finish_copies(int pending);        // all but those of so many groups

}  // namespace emulator
