// csrc/sm90/projection.cu, run on the CPU. Built by tests/cake/test_emulated_sm90_projection.py.
#include "emulated.h"

#include <mutex>

// A CTA is an OS thread: its shared memory is a variable of that thread, declared in the kernel.
#undef __shared__
#define __shared__ thread_local
#define FP16X2 0
#include "sm90/projection.cu"

namespace cake {
constexpr int SMEM = 227 * 1024;
__align__(1024) thread_local char smem[SMEM];
}  // namespace cake

// All CTAs at once, each on a thread; `late` bit 0: copies land when they are waited for, and boxes are stored then, bit 1: products
// are done then. Returns what went wrong, or nothing.
extern "C" __attribute__((visibility("default"))) const char* emulate(const cake::ProjectionParams* p, int walkers, int threads, int smem_bytes, unsigned seed, int late) {
  static std::string message;
  static std::mutex lock;
  message.clear(), emulated::failed = false;
  if (smem_bytes > cake::SMEM) return "more shared memory than there is";
  std::vector<std::thread> running;
  for (int i = 0; i < walkers; ++i)
    running.emplace_back([=] {
      emulated::Cta c;
      c.smem.borrow(cake::smem, smem_bytes, (char)0xff);  // NaN
      c.block = i, c.blocks = walkers;
      c.random.seed(seed + i), c.late_copies = late & 1, c.late_products = late & 2;
      c.body = [=] { projection_sm90(*p); };
      try {
        emulated::run(c, threads, false);  // nobody waits for another CTA
      } catch (const std::exception& e) {
        std::lock_guard<std::mutex> guard(lock);
        if (!emulated::failed.exchange(true) || message.ends_with("another CTA failed") || message.empty()) message = "CTA " + std::to_string(i) + ": " + e.what();
      }
    });
  for (auto& t : running) t.join();
  return message.c_str();
}
