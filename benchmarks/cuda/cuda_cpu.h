// As much of CUDA as the kernels here use, on one CPU thread: enough to test what they compute, with g++ -include.
//
// The threads of a block are fibers that run in turn until they meet a barrier or a shuffle. There a fiber waits for all
// lanes that its mask names. Lanes that never come (they returned, or wait elsewhere) end the program with a message, where
// a GPU would hang or read rubbish. Blocks run one after the other, so that __shared__ arrays can be static.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

using std::max;
using std::min;

struct int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> T __ldg(const T* address) { return *address; }
inline float __expf(float x) { return std::exp(x); }

inline dim3 blockIdx, threadIdx, blockDim, gridDim;

namespace cpu {

constexpr int MOST = 1024, STACK = 1 << 16;
constexpr unsigned BLOCK = 0;  // the mask of __syncthreads

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool done, waits;
    unsigned mask;
    long long word;  // what it offers to shuffles
};

inline Fiber fibers[MOST];
inline ucontext_t scheduler;
inline unsigned current, count;
inline void (*body)(void*);
inline void* arguments;

inline void enter()
{
    body(arguments);
    fibers[current].done = true;
    swapcontext(&fibers[current].context, &scheduler);
}

// All whom the barrier of the running fiber names wait there, it itself included.
inline bool complete(unsigned mask)
{
    const unsigned warp = current / 32 * 32;
    for (unsigned t = mask == BLOCK ? 0 : warp; t < (mask == BLOCK ? count : warp + 32); ++t) {
        const bool named = mask == BLOCK ? !fibers[t].done : mask >> (t - warp) & 1;
        if (named && (t >= count || fibers[t].done || !fibers[t].waits || fibers[t].mask != mask)) return false;
    }
    return true;
}

inline void barrier(unsigned mask)
{
    Fiber& own = fibers[current];
    own.waits = true;
    own.mask = mask;
    if (complete(mask)) {
        const unsigned warp = current / 32 * 32;
        for (unsigned t = 0; t < count; ++t)
            if (fibers[t].mask == mask && (mask == BLOCK || t / 32 * 32 == warp)) fibers[t].waits = false;
    }
    while (own.waits) swapcontext(&own.context, &scheduler);
}

inline void run_block(unsigned threads)
{
    count = threads;
    for (unsigned t = 0; t < threads; ++t) {
        Fiber& fiber = fibers[t];
        if (!fiber.stack) fiber.stack.reset(new char[STACK]);
        fiber.done = fiber.waits = false;
        fiber.mask = ~0u;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    for (unsigned running = threads; running;) {
        bool moved = false;
        for (unsigned t = 0; t < threads; ++t) {
            if (fibers[t].done || fibers[t].waits) continue;
            moved = true;
            current = t;
            threadIdx.x = t;
            swapcontext(&scheduler, &fibers[t].context);
            running -= fibers[t].done;
        }
        if (!moved) {
            std::fprintf(stderr, "block %u: threads wait for others that do not come\n", blockIdx.x);
            std::abort();
        }
    }
}

// What the lane *source* offers to the lanes of *mask*, this one included.
template <class T> T exchange(unsigned mask, T value, unsigned source)
{
    static_assert(sizeof(T) <= sizeof(long long) && std::is_trivially_copyable_v<T>);
    std::memcpy(&fibers[current].word, &value, sizeof(T));
    barrier(mask);
    T found;
    std::memcpy(&found, &fibers[current / 32 * 32 + source].word, sizeof(T));
    barrier(mask);
    return found;
}

inline unsigned lane() { return current % 32; }

template <auto Kernel> struct Launch;
template <class... A, void (*Kernel)(A...)> struct Launch<Kernel> {
    static void run(unsigned blocks, unsigned threads, A... given)
    {
        auto call = [&] { Kernel(given...); };
        arguments = &call;
        body = [](void* closure) { (*static_cast<decltype(call)*>(closure))(); };
        gridDim.x = blocks;
        blockDim.x = threads;
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) run_block(threads);
    }
};

}  // namespace cpu

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    return cpu::exchange(mask, value, cpu::lane() / width * width + source % width);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int step)
{
    return cpu::exchange(mask, value, cpu::lane() ^ step);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned step)
{
    return cpu::exchange(mask, value, cpu::lane() < step ? cpu::lane() : cpu::lane() - step);
}
inline bool __all_sync(unsigned mask, bool own)
{
    bool all = true;
    for (unsigned from = 0; from < 32; ++from)
        if (mask >> from & 1) all &= cpu::exchange(mask, own, from);
    return all;
}
inline void __syncthreads() { cpu::barrier(cpu::BLOCK); }

// Exports launch_NAME(blocks, threads, the arguments of the kernel NAME).
#define ON_CPU(name) extern "C" decltype(&cpu::Launch<&name>::run) const launch_##name = &cpu::Launch<&name>::run;
