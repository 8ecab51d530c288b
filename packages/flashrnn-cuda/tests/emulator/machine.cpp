#include "machine.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

namespace emulator {

const Place* here;
Index block_size, grid;
long long clock_now;

namespace {

constexpr int STACK = 1 << 17, GUARD = 1 << 12;
constexpr unsigned char UNWRITTEN = 0xff;  // NaN, in every type

using Kernel = void(const void*);

// What runs, of the launch.
Kernel* kernel;
const void* arguments;
jmp_buf launching, scheduler;
std::string error;
unsigned long long state;
std::vector<std::unique_ptr<Cta>> ctas;
std::vector<std::unique_ptr<Cluster>> clusters;
std::vector<Warp*> ready, slow;   // warps with threads that can run; the slow ones only where no other can
std::vector<Thread*> resting;     // they look for something, again and again
std::vector<Store> on_their_way;  // oldest first
Warp* favourite;                  // goes on for as long as it can, mostly
int alive;
long long looks;  // without any progress
// The character of a schedule: one in how many times ... happens.
uint change, delivery, slowness;
bool newest_first;

template <class T>
T take(std::vector<T>& from, size_t i) {
  T taken = from[i];
  from.erase(from.begin() + i);
  return taken;
}

// ---------------------------------------------------------------------------------------------------------------- fibers

// Stacks are kept from launch to launch.
char* stack_for(size_t i) {
  static std::vector<char*> stacks;
  while (stacks.size() <= i) {
    void* const memory = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for the stack of thread %zu", i);
    stacks.push_back(static_cast<char*>(memory));
  }
  return stacks[i];
}

void leave() {
  Thread& thread = me();
  if (_setjmp(thread.registers) == 0) _longjmp(scheduler, 1);
}

void live() {
  kernel(arguments);
  finish_copies(0);
  my_cta().alive--;
  alive--;
  looks = 0;
  _longjmp(scheduler, 1);
}

void run(Thread& thread) {
  here = &thread;
  if (_setjmp(scheduler) != 0) return;
  if (thread.has_begun) _longjmp(thread.registers, 1);
  thread.has_begun = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = thread.stack;
  context.uc_stack.ss_size = STACK;
  makecontext(&context, live, 0);
  setcontext(&context);
}

// -------------------------------------------------------------------------------------------------------------- schedule

void arrive(const Store& store) {
  looks = 0;
  if (store.cta != nullptr && store.cta->alive == 0) fail("a store into the shared memory of a CTA that has ended");
  std::memcpy(store.to, store.words, store.bytes);
  if (store.counter == nullptr) return;
  store.counter->bytes -= store.bytes;
  store.counter->complete();
}

bool overlap(const Store& store, const char* to, int bytes) { return store.to < to + bytes && to < store.to + store.bytes; }

// The i-th on its way, after older ones to the same place.
void deliver(size_t i) {
  const Store store = take(on_their_way, i);
  for (size_t k = 0; k < i;)
    if (overlap(on_their_way[k], store.to, store.bytes))
      arrive(take(on_their_way, k)), i--;
    else
      k++;
  arrive(store);
}

Thread* next_of(std::vector<Warp*>& warps) {
  auto found = std::find(warps.begin(), warps.end(), favourite);
  if (found == warps.end() || random(change) == 0) found = warps.begin() + random(warps.size());
  favourite = *found;
  looks = 0;
  Thread* const thread = take(favourite->ready, random(favourite->ready.size()));
  if (favourite->ready.empty()) warps.erase(found);
  return thread;
}

// Who runs next; nobody if none can.
Thread* next() {
  while (!ready.empty() || !slow.empty() || !resting.empty() || !on_their_way.empty()) {
    const size_t others = slow.size() + resting.size();
    if (!on_their_way.empty() && (random(delivery) == 0 || (ready.empty() && random(1 + others) == 0)))
      deliver(newest_first ? on_their_way.size() - 1 : random(on_their_way.size()));
    if (!ready.empty()) return next_of(ready);
    if (others == 0) continue;
    const uint i = random(others);
    if (i < slow.size()) return next_of(slow);
    if (looks++ > 1000LL * (alive + 1000)) return nullptr;
    return take(resting, i - slow.size());
  }
  return nullptr;
}

std::string whereabouts() {
  std::string report;
  for (const auto& cta : ctas)
    for (const Warp& warp : cta->warps) {
      std::map<std::string, int> places;
      for (const Thread& thread : warp.threads)
        if (thread.warp != nullptr) places[thread.where]++;
      report += "\nCTA " + std::to_string(warp.threads[0].block.x) + " warp " + std::to_string(warp.index) + ":";
      for (const auto& [where, count] : places) report += " " + std::to_string(count) + " in " + where;
    }
  return report;
}

// --------------------------------------------------------------------------------------------------------------- a launch

void make_cta(Index block, int threads, int shared_bytes, Cluster& cluster) {
  ctas.push_back(std::make_unique<Cta>());
  Cta& cta = *ctas.back();
  cta.cluster = &cluster;
  cta.rank = cluster.ctas.size();
  cta.alive = threads;
  cta.guarded.assign(shared_bytes + 2 * GUARD, UNWRITTEN);
  cta.warps.resize((threads + WARP - 1) / WARP);
  cluster.ctas.push_back(&cta);
  cluster.threads += threads;
  for (int i = 0; i < threads; i++) {
    Warp& warp = cta.warps[i / WARP];
    Thread& thread = warp.threads[i % WARP];
    if (i % WARP == 0) {
      warp.cta = &cta;
      warp.index = i / WARP;
      warp.is_slow = random(slowness) == 0;
    }
    thread.thread = {uint(i), 0, 0};
    thread.block = block;
    thread.warp = &warp;
    thread.stack = stack_for(alive++);
    wake(thread);
  }
}

void check_guards() {
  for (const auto& cta : ctas)
    for (int i = 0; i < GUARD; i++)
      for (const char byte : {cta->guarded[i], cta->guarded[cta->guarded.size() - 1 - i]})
        if ((unsigned char)byte != UNWRITTEN) fail("a store before or behind the shared memory");
}

// CTAs `first` to `last`, to their end.
void run_together(uint first, uint last, uint threads, uint shared_bytes, uint cluster) {
  ctas.clear(), clusters.clear(), ready.clear(), slow.clear(), resting.clear(), on_their_way.clear();
  alive = 0;
  for (uint i = first; i < last; i++) {
    if (i % cluster == 0) clusters.push_back(std::make_unique<Cluster>());
    make_cta({i % grid.x, i / grid.x, 0}, threads, shared_bytes, *clusters.back());
  }
  while (Thread* const thread = next()) run(*thread);
  if (alive > 0) fail("%s%s", resting.empty() ? "deadlock" : "all look for what never comes", whereabouts().c_str());
  check_guards();
}

}  // namespace

Thread& me() { return *static_cast<Thread*>(const_cast<Place*>(here)); }
Cta& my_cta() { return *me().warp->cta; }
int my_lane() { return me().thread.x % WARP; }
char* Cta::shared() { return guarded.data() + GUARD; }
char* shared_memory() { return my_cta().shared(); }

void fail(const char* format, ...) {
  static char text[1 << 16];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  error = text;
  _longjmp(launching, 1);
}

uint random(uint below) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return uint((state >> 32) * below >> 32);
}

void wait(const char* where) {
  me().where = where;
  leave();
}

void wake(Thread& thread) {
  Warp& warp = *thread.warp;
  looks = 0;
  if (warp.ready.empty()) {
    if (random(256) == 0) warp.is_slow = random(slowness) == 0;
    (warp.is_slow ? slow : ready).push_back(&warp);
  }
  warp.ready.push_back(&thread);
}

void wake_all(std::vector<Thread*>& threads) {
  for (Thread* const thread : threads) wake(*thread);
  threads.clear();
}

void rest(const char* where) {
  resting.push_back(&me());
  wait(where);
}

// ---------------------------------------------------------------------------------------------------------------- memory

uint address_of(const char* p) {
  Cta& cta = my_cta();
  const auto offset = p - cta.shared();
  if (offset < -GUARD || offset > (long long)(cta.guarded.size()) - GUARD) fail("no address of shared memory");
  return uint(cta.rank + 1) << 24 | uint(offset);
}

Cta* cta_of(uint address) {
  const auto& peers = my_cta().cluster->ctas;
  const uint rank = (address >> 24) - 1;
  if (rank >= peers.size()) fail("shared memory of a CTA that is not in the cluster");
  return peers[rank];
}

char* in_shared(uint address, int bytes, bool own) {
  Cta* const cta = cta_of(address);
  const uint offset = address & 0xffffff;
  if (own && cta != &my_cta()) fail("an instruction for the CTA's own shared memory at another's");
  if (offset + bytes > cta->guarded.size() - 2 * GUARD) fail("shared memory at %u, beyond its end", offset);
  if (offset % bytes != 0) fail("shared memory at %u, not a multiple of %d", offset, bytes);
  return cta->shared() + offset;
}

void send(const Store& store) { on_their_way.push_back(store); }

void flush(const char* to, int bytes) {
  for (size_t i = 0; i < on_their_way.size();) {
    const Store& store = on_their_way[i];
    if (store.cta == nullptr && store.from == &my_cta() && (to == nullptr || overlap(store, to, bytes)))
      arrive(take(on_their_way, i));
    else
      i++;
  }
}

void flush() { flush(nullptr, 0); }

void finish_copies(int pending) {
  auto& copies = me().copies;
  size_t done = 0;
  for (; done < copies.size() && copies[done].group <= me().groups - pending; done++)
    std::memcpy(copies[done].to, copies[done].from, copies[done].bytes);
  copies.erase(copies.begin(), copies.begin() + done);
}

void Mbarrier::complete() {
  if (mark != MARK) fail("an mbarrier that nobody has made");
  if (pending > 0 || bytes != 0) return;
  phase ^= 1;
  pending = expected;
}

}  // namespace emulator

using namespace emulator;

// Null, or what went wrong.
extern "C" const char* emulated_launch(Kernel* kernel_, const void* arguments_, uint grid_x, uint grid_y, uint threads,
                                       uint shared_bytes, uint cluster, bool all_at_once, uint seed) {
  kernel = kernel_, arguments = arguments_, grid = {grid_x, grid_y, 1}, block_size = {threads, 1, 1}, state = seed;
  change = 1 << random(10), delivery = 1 << random(10), slowness = 1 + random(8), newest_first = random(2) == 0;
  error.clear();
  if (_setjmp(launching) != 0) return error.c_str();
  const uint count = grid_x * grid_y, at_once = all_at_once ? count : cluster;
  for (uint first = 0; first < count; first += at_once) run_together(first, first + at_once, threads, shared_bytes, cluster);
  return nullptr;
}
