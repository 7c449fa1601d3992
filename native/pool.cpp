#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>
#define GRAPHPROBE_HAS_FORK 1
#endif

namespace graphprobe {
namespace {

// Statistics of one op follow those of the op before closely. Waking a sleeping thread takes longer than 1 MB of work,
// so a worker looks for more work this long before it sleeps.
constexpr auto spin_time = std::chrono::microseconds(40);

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
  public:
    void run(size_t count, int threads, void (*work)(void*, size_t), void* context) {
        std::unique_lock<std::mutex> only(busy_, std::try_to_lock);
        if (!only.owns_lock() || !grow(threads - 1)) {
            for (size_t i = 0; i < count; ++i) work(context, i);
            return;
        }
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = work;
            context_ = context;
            count_ = count;
            next_.store(0, std::memory_order_relaxed);
            helpers_.store(threads - 1, std::memory_order_relaxed);
            gate_.store(open, std::memory_order_release);
            generation_.fetch_add(1, std::memory_order_release);
        }
        if (sleeping_.load() > 0) wake_.notify_all();
        take();
        // A worker that has not come by now is not waited for: the gate closes, and those inside finish their segment.
        gate_.fetch_and(~open, std::memory_order_acq_rel);
        for (unsigned spins = 1; gate_.load(std::memory_order_acquire) != 0; ++spins) {
            if (spins % 4096 == 0) std::this_thread::yield();  // whoever is inside may have lost its processor
            pause();
        }
    }

  private:
    static constexpr unsigned open = 1u << 31;  // the rest of the gate counts the workers inside

    void take() {
        for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) work_(context_, i);
    }

    bool grow(int wanted) {
        try {
            while (static_cast<int>(workers_) < wanted) {
                const unsigned seen = generation_.load();
                std::thread([this, index = workers_, seen] { serve(index, seen); }).detach();
                ++workers_;
            }
        } catch (...) {
            return false;  // the system gives no more threads
        }
        return true;
    }

    void serve(int index, unsigned seen) {
        for (;;) {
            const auto until = std::chrono::steady_clock::now() + spin_time;
            for (unsigned spins = 1; generation_.load(std::memory_order_acquire) == seen; ++spins) {
                pause();
                if (spins % 64 == 0 && std::chrono::steady_clock::now() > until) {
                    std::unique_lock<std::mutex> lock(mutex_);
                    sleeping_.fetch_add(1);
                    wake_.wait(lock, [&] { return generation_.load() != seen; });
                    sleeping_.fetch_sub(1);
                }
            }
            seen = generation_.load(std::memory_order_acquire);
            if (index >= helpers_.load(std::memory_order_relaxed)) continue;  // fewer threads were asked for
            unsigned gate = gate_.load(std::memory_order_relaxed);
            while ((gate & open) && !gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) {}
            if (!(gate & open)) continue;
            take();
            gate_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::mutex busy_, mutex_;
    std::condition_variable wake_;
    std::atomic<unsigned> generation_{0}, gate_{0};
    std::atomic<size_t> next_{0};
    std::atomic<int> sleeping_{0}, helpers_{0};
    void (*work_)(void*, size_t) = nullptr;
    void* context_ = nullptr;
    size_t count_ = 0;
    int workers_ = 0;
};

// Never destroyed: its threads may still wait when the process ends.
std::atomic<Pool*> current{nullptr};

Pool& pool() {
    Pool* found = current.load();
    if (found) return *found;
#if GRAPHPROBE_HAS_FORK
    // A forked child has none of its parent's threads, and perhaps a locked mutex of theirs: it begins with a new pool.
    static const int registered = pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); });
    (void)registered;
#endif
    Pool* fresh = new Pool;
    if (current.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;  // another thread was faster; no worker has been started
    return *found;
}

// ---- the OpenMP of the process ---------------------------------------------------------------------------------------

#if GRAPHPROBE_HAS_FORK
// What GCC makes of `#pragma omp parallel`; the libraries of LLVM and Intel have it too. Every thread of the team calls
// the function.
using Team = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);

// A forked child has lost the threads that its OpenMP believes to have. Registered when this module is loaded: the parent
// may have used them without us.
std::atomic<bool> forked{false};
[[maybe_unused]] const int fork_is_noted = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });

// Null before torch, or whatever else brings an OpenMP, is loaded, and in a forked child.
Team team() {
    static std::atomic<Team> known{nullptr};
    if (forked.load(std::memory_order_relaxed)) return nullptr;
    Team found = known.load(std::memory_order_relaxed);
    if (!found) {
        found = reinterpret_cast<Team>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
        known.store(found, std::memory_order_relaxed);
    }
    return found;
}

struct Share {
    size_t count;
    void (*work)(void*, size_t);
    void* context;
    std::atomic<size_t> next{0};
};

void take_share(void* of) {
    Share& share = *static_cast<Share*>(of);
    for (size_t i; (i = share.next.fetch_add(1, std::memory_order_relaxed)) < share.count;) share.work(share.context, i);
}
#endif

}  // namespace

void parallel(size_t count, int threads, void (*work)(void*, size_t), void* context) {
    if (threads <= 1 || count <= 1) {
        for (size_t i = 0; i < count; ++i) work(context, i);
        return;
    }
#if GRAPHPROBE_HAS_FORK
    if (const Team run = team()) {
        // All threads even of a small count: a team of another size would be built anew each time.
        Share share{count, work, context};
        run(take_share, &share, static_cast<unsigned>(threads), 0);
        return;
    }
#endif
    if (static_cast<size_t>(threads) > count) threads = static_cast<int>(count);
    pool().run(count, threads, work, context);
}

}  // namespace graphprobe
