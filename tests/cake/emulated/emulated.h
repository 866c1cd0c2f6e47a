// A CUDA CTA on a CPU: its threads are fibers of one OS thread that take turns, in an order drawn anew every round, some
// warps seldom. What the hardware does some time between an instruction and the wait for it (copies to shared memory,
// warpgroup products) is done at either end, as asked. So a missing wait, a slot filled too early or a barrier that nobody
// reaches show as wrong sums or as an error, and not once in a thousand launches.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using std::max;
using std::min;

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) int4 { int x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

namespace emulated {

// --- fibers ----------------------------------------------------------------------------------------------------------

constexpr int STACK = 64 * 1024;

struct Barrier { int arrived = 0; long turn = 0; };
struct Exchange { unsigned value[32]; Barrier barrier; };

// Shared memory, of its own or what the compiler has placed.
class Memory {
 public:
  void assign(size_t bytes, char value) { own_.assign(bytes, value), at_ = own_.data(), bytes_ = bytes; }
  void borrow(char* at, size_t bytes, char value) { std::memset(at, value, bytes), at_ = at, bytes_ = bytes; }
  char* data() const { return at_; }
  size_t size() const { return bytes_; }
  char& at(size_t i) const {
    if (i >= bytes_) throw std::out_of_range("shared memory has no byte " + std::to_string(i));
    return at_[i];
  }

 private:
  std::vector<char> own_;
  char* at_ = nullptr;
  size_t bytes_ = 0;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
  const std::function<bool()>* ready = nullptr;  // what it waits for
  int id = 0;
  // wgmma: those of groups committed and not yet waited for, and of the group being made.
  std::deque<std::vector<std::function<void()>>> products;
  std::vector<std::function<void()>> batch;
  // Stores of boxes: groups that have not been read out of shared memory, and the group being made.
  std::deque<std::vector<std::function<void()>>> stores;
  std::vector<std::function<void()>> storing;
  long fences = 0, stored = 0;  // of its stores to shared memory; those that were when boxes of them were stored
};

struct Cta {
  std::vector<std::unique_ptr<Fiber>> fibers;
  ucontext_t scheduler;
  Fiber* current = nullptr;
  Memory smem;
  int block = 0, blocks = 1;
  std::mt19937 random;
  bool late_copies = false, late_products = false;
  std::vector<std::function<void()>> boxes;  // on their way
  long progress = 0;
  Barrier named[16];
  std::vector<Exchange> warps;
  struct Operands { unsigned a[128][4]; float rows[64][16], b[16][256]; Barrier barrier; };
  std::vector<Operands> groups;  // of the warpgroups' products
  std::function<void()> body;
  std::string error;
};

inline thread_local Cta* cta = nullptr;
inline std::atomic<bool> failed{false};

inline void yield() { swapcontext(&cta->current->context, &cta->scheduler); }

// Counts as at `meet`, and does not wait.
inline void arrive(Barrier& b, int threads) {
  ++cta->progress;
  if (++b.arrived == threads) b.arrived = 0, ++b.turn;
}

// Gives way until something is so.
template <typename F>
void wait(F ready) {
  const std::function<bool()> now = ready;
  if (!now()) cta->current->ready = &now, yield();
  ++cta->progress;
}

inline void meet(Barrier& b, int threads) {
  const long turn = b.turn;
  ++cta->progress;
  if (++b.arrived == threads) {
    b.arrived = 0, ++b.turn;
  } else {
    wait([&] { return b.turn != turn; });
  }
}

inline void enter() {
  try {
    cta->body();
    const Fiber& f = *cta->current;
    if (!f.products.empty() || !f.batch.empty()) throw std::runtime_error("a thread ends before its products");
    if (!f.stores.empty() || !f.storing.empty()) throw std::runtime_error("a thread ends before its boxes are read");
  } catch (const std::exception& e) {  // not through a switch of stacks
    if (cta->error.empty()) cta->error = e.what();
  }
  cta->current->done = true, ++cta->progress;
  yield();
}

// Runs a CTA to its end on this OS thread. Throws where nothing moves any more; `foreign` says that other CTAs may move it.
inline void run(Cta& c, int threads, bool foreign) {
  cta = &c;
  c.warps.resize(threads / 32), c.groups.resize(threads / 128);
  for (int i = 0; i < threads; ++i) {
    auto f = std::make_unique<Fiber>();
    f->id = i, f->stack.reset(new char[STACK]);
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack.get(), f->context.uc_stack.ss_size = STACK, f->context.uc_link = nullptr;
    makecontext(&f->context, enter, 0);
    c.fibers.push_back(std::move(f));
  }
  std::vector<Fiber*> order;
  for (auto& f : c.fibers) order.push_back(f.get());
  // Some warps are slow, so that others get as far ahead of them as they are let.
  std::vector<unsigned> haste(threads / 32);
  for (auto& h : haste) h = c.random() % 3 ? 100 : 10;
  const unsigned pace = c.random() % 2 ? 50 : 2000;  // turns a copy takes; the slow ones come when nothing else moves
  for (long idle = 0;;) {
    std::shuffle(order.begin(), order.end(), c.random);
    const long before = c.progress;
    bool all = true;
    for (Fiber* f : order)
      if (!f->done) {
        all = false;
        if ((f->ready && !(*f->ready)()) || c.random() % 100 >= haste[f->id / 32]) continue;
        f->ready = nullptr, c.current = f;
        swapcontext(&c.scheduler, &f->context);
      }
    if (!c.boxes.empty() && (c.random() % pace == 0 || c.progress == before)) {
      std::swap(c.boxes[c.random() % c.boxes.size()], c.boxes.back());
      c.boxes.back()(), c.boxes.pop_back();
    }
    if (!c.error.empty()) throw std::runtime_error(c.error);
    if (all && c.boxes.empty()) return;
    if (failed) throw std::runtime_error("another CTA failed");
    idle = c.progress == before ? idle + 1 : 0;
    if (idle && foreign) std::this_thread::yield();
    if (idle > (foreign ? 2000000 : 500)) {
      failed = true;
      throw std::runtime_error("nothing moves any more");
    }
  }
}

struct Index { operator int() const { return cta->current->id; } };
struct ThreadIdx { Index x; };
struct Block { operator int() const { return cta->block; } };
struct Blocks { operator int() const { return cta->blocks; } };
struct BlockIdx { Block x; };
struct GridDim { Blocks x; };

}  // namespace emulated

static emulated::ThreadIdx threadIdx;
static emulated::BlockIdx blockIdx;
static emulated::GridDim gridDim;

// --- intrinsics --------------------------------------------------------------------------------------------------------

inline unsigned __float_as_uint(float x) { unsigned u; std::memcpy(&u, &x, 4); return u; }
inline int __float_as_int(float x) { return (int)__float_as_uint(x); }
inline float __uint_as_float(unsigned u) { float x; std::memcpy(&x, &u, 4); return x; }
inline float __int_as_float(int i) { return __uint_as_float((unsigned)i); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = (uint64_t)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return r;
}
template <typename T> T __ldcg(const T* p) { return *p; }
template <typename T> void __stcg(T* p, T v) { *p = v; }
inline long long clock64() { return 0; }
inline unsigned atomicAdd(unsigned* p, unsigned v) { return std::atomic_ref<unsigned>(*p).fetch_add(v); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

inline void __syncwarp() {
  using namespace emulated;
  meet(cta->warps[threadIdx.x / 32].barrier, 32);
}
inline void __syncthreads() {
  using namespace emulated;
  meet(cta->named[0], (int)cta->fibers.size());
}
inline int __shfl_sync(unsigned, int v, int lane) {
  auto& e = emulated::cta->warps[threadIdx.x / 32];
  e.value[threadIdx.x % 32] = v;
  __syncwarp();
  const int r = e.value[lane];
  __syncwarp();
  return r;
}
inline float __shfl_xor_sync(unsigned, float v, int lanes) {
  auto& e = emulated::cta->warps[threadIdx.x / 32];
  e.value[threadIdx.x % 32] = __float_as_uint(v);
  __syncwarp();
  const float r = __uint_as_float(e.value[threadIdx.x % 32 ^ lanes]);
  __syncwarp();
  return r;
}
inline bool __any_sync(unsigned, bool v) {
  auto& e = emulated::cta->warps[threadIdx.x / 32];
  e.value[threadIdx.x % 32] = v;
  __syncwarp();
  const bool r = std::any_of(e.value, e.value + 32, [](unsigned x) { return x != 0; });
  __syncwarp();
  return r;
}
