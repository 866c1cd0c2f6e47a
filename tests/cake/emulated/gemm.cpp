// A GEMM of csrc/sm90/gemm.cuh, run on the CPU. Built by tests/cake/test_emulated.py.
#include "sm90/gemm.cuh"

#include <mutex>

struct Config { CAKE_CONFIG(GEMM) };
using Gemm = cake::Gemm<Config>;

// All CTAs at once, each on a thread; `late` bit 0: copies land when they are waited for, bit 1: products are done then. Returns
// what went wrong, or nothing.
extern "C" __attribute__((visibility("default"))) const char* emulate(const cake::MappedParams* p, int walkers, int parts, int threads, int smem_bytes, unsigned seed, int late) {
  static std::string message;
  static std::mutex lock;
  message.clear(), emulated::failed = false;
  std::vector<std::thread> running;
  for (int i = 0; i < walkers * parts; ++i)
    running.emplace_back([=] {
      emulated::Cta c;
      c.smem.assign(smem_bytes, (char)0xff);  // NaN
      c.random.seed(seed + i), c.late_copies = late & 1, c.late_products = late & 2;
      const cake::Cta cta{i % walkers, walkers, i / walkers, parts};
      char* smem = c.smem.data();
      c.body = [=] { Gemm::run(*p, cta, smem); };
      try {
        emulated::run(c, threads, walkers * parts > 1);
      } catch (const std::exception& e) {
        emulated::failed = true;
        std::lock_guard<std::mutex> guard(lock);
        if (message.empty()) message = "CTA " + std::to_string(i) + ": " + e.what();
      }
    });
  for (auto& t : running) t.join();
  return message.c_str();
}
