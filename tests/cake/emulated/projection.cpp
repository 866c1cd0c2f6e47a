// csrc/sm80/projection.cuh, run on the CPU. Built by tests/cake/test_emulated_projection.py.
#include "emulated.h"
#include "sm80/projection.cuh"

#include <mutex>

// All CTAs at once, each on a thread; `late`: copies land when they are waited for. Returns what went wrong, or nothing.
extern "C" __attribute__((visibility("default"))) const char* emulate(const cake::Params* p, int tiles, int parts, int threads, int smem_bytes, unsigned seed, int late) {
  static std::string message;
  static std::mutex lock;
  message.clear(), emulated::failed = false;
  std::vector<std::thread> running;
  for (int i = 0; i < tiles * parts; ++i)
    running.emplace_back([=] {
      emulated::Cta c;
      c.smem.assign(smem_bytes, (char)0xff);  // NaN
      c.random.seed(seed + i), c.late_copies = late;
      char* smem = c.smem.data();
      c.body = [=] { cake::projection(*p, cake::Cta{i % tiles, i / tiles, parts}, smem); };
      try {
        emulated::run(c, threads, tiles * parts > 1);
      } catch (const std::exception& e) {
        emulated::failed = true;
        std::lock_guard<std::mutex> guard(lock);
        if (message.empty()) message = "CTA " + std::to_string(i) + ": " + e.what();
      }
    });
  for (auto& t : running) t.join();
  return message.c_str();
}
