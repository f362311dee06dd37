// Threads that work through stages. They are OpenMP's, so that torch's pool is used and no second one spins beside it;
// the barrier is ours: it gives the processor away when the other thread has lost its own.
#pragma once
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

class Team {
   public:
    // To be called by every thread of the parallel region before anything else. OpenMP may give fewer threads than were
    // asked for (a limit, a region inside another), and a barrier for more than there are would wait for ever.
    void gather() {
#pragma omp single
        size_ = omp_get_num_threads();
    }

    // Run body(begin, end) over 0..total in pieces of `grain`, taken by whichever thread is free, and wait for all.
    // Which thread does which piece never matters: no sum crosses pieces.
    template <class Body>
    void each(int64_t total, int64_t grain, Body body) {
        if (size_ == 1) {
            body(int64_t(0), total);
            return;
        }
        for (int64_t begin; (begin = next_.fetch_add(grain, std::memory_order_relaxed)) < total;)
            body(begin, std::min(begin + grain, total));
        wait();
    }

   private:
    void wait() {
        const int phase = phase_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);  // everybody is here, so nobody is taking pieces
            phase_.store(phase + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
            if (spins > 4000) sched_yield();
#if defined(__x86_64__)
            else _mm_pause();
#endif
        }
    }

    int size_ = 1;
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> phase_{0};
};

// Seconds since the last reading, added to one of the caller's sums by the thread that owns the clock.
class Clock {
   public:
    explicit Clock(double* sums) : sums_(sums), last_(std::chrono::steady_clock::now()) {}
    void lap(int part) {
        if (!sums_) return;
        const auto now = std::chrono::steady_clock::now();
        sums_[part] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

   private:
    double* sums_;
    std::chrono::steady_clock::time_point last_;
};
