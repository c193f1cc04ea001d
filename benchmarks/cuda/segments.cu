// Sums over segments, float32: out[key] = sum of the values of that key, keys ascending (sorted COO). The same bits in
// every run: no atomics. out is cleared before; keys and values are aligned to 16 bytes.
//
// segment_sum takes tiles of 2048 elements. A run of equal keys that ends before the last element of a tile is stored as
// far as it lies in the tile; what follows the last end is the tile's carry. segment_carry then adds the carries of each
// key, in the order of the tiles, to what is stored for that key. At most one tile stores a key, and one warp adds to it.

#include "loads.h"

constexpr int ITEMS = 8;
constexpr int TILE = THREADS * ITEMS;

// What a range of elements leaves open: the sum after its last end of a run, and whether there is an end.
struct Open {
    float sum;
    int closed;
};

__device__ __forceinline__ Open then(Open first, Open second)
{
    return {second.closed ? second.sum : first.sum + second.sum, first.closed | second.closed};
}

// What the lanes up to this one leave open.
__device__ __forceinline__ Open scan_warp(Open own, int lane)
{
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Open before = {__shfl_up_sync(ALL, own.sum, step), __shfl_up_sync(ALL, own.closed, step)};
        if (lane >= step) own = then(before, own);
    }
    return own;
}

__device__ __forceinline__ void read_items(
    int (&key)[ITEMS], float (&value)[ITEMS], const int* __restrict__ keys, const float* __restrict__ values,
    unsigned first, unsigned nnz)
{
    if (first + ITEMS <= nnz) {
#pragma unroll
        for (int i = 0; i < ITEMS; i += 4) {
            *reinterpret_cast<int4*>(key + i) = *reinterpret_cast<const int4*>(keys + first + i);
            *reinterpret_cast<float4*>(value + i) = *reinterpret_cast<const float4*>(values + first + i);
        }
    } else {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            key[i] = keys[min(first + i, nnz - 1)];
            value[i] = first + i < nnz ? values[first + i] : 0.f;
        }
    }
}

// Grid: ceil(nnz / 2048) blocks, each with a carry; block: 256 threads.
extern "C" __global__ void __launch_bounds__(THREADS) segment_sum(
    int nnz, const int* __restrict__ keys, const float* __restrict__ values, float* __restrict__ out,
    int* __restrict__ carry_keys, float* __restrict__ carry_sums)
{
    __shared__ Open warps[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned first = blockIdx.x * TILE + threadIdx.x * ITEMS;
    alignas(16) int key[ITEMS + 1];
    alignas(16) float value[ITEMS];
    read_items(reinterpret_cast<int(&)[ITEMS]>(key), value, keys, values, first, nnz);
    key[ITEMS] = threadIdx.x < THREADS - 1 ? keys[min(first + ITEMS, (unsigned)nnz - 1)] : key[ITEMS - 1];

    float run = 0.f, head = 0.f;  // head: the first run that ends here, as far as it lies in this thread
    int head_key = -1;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        run += value[i];
        if (key[i] != key[i + 1]) {
            if (head_key < 0) {
                head = run;
                head_key = key[i];
            } else {
                out[key[i]] = run;
            }
            run = 0.f;
        }
    }
    const Open upto = scan_warp({run, head_key >= 0}, lane);
    if (lane == 31) warps[warp] = upto;
    __syncthreads();
    Open before = {0.f, 0};
#pragma unroll
    for (int w = 0; w < THREADS / 32 - 1; ++w)
        if (w < warp) before = then(before, warps[w]);
    const Open all = then(before, upto);
    const Open previous = {__shfl_up_sync(ALL, upto.sum, 1), __shfl_up_sync(ALL, upto.closed, 1)};
    if (lane) before = then(before, previous);
    if (head_key >= 0) out[head_key] = before.sum + head;
    if (threadIdx.x == THREADS - 1) {
        carry_keys[blockIdx.x] = key[ITEMS - 1];
        carry_sums[blockIdx.x] = all.sum;
    }
}

// Grid: ceil(tiles / 8) blocks, a warp for each tile; block: 256 threads.
extern "C" __global__ void __launch_bounds__(THREADS) segment_carry(
    int tiles, const int* __restrict__ carry_keys, const float* __restrict__ carry_sums, float* __restrict__ out)
{
    const int lane = threadIdx.x % 32;
    const int tile = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (tile >= tiles) return;
    const int key = carry_keys[tile];
    if (tile && carry_keys[tile - 1] == key) return;
    float total = 0.f;
    bool more = true;
    for (int t = tile + lane; more; t += 32) {
        const bool same = t < tiles && carry_keys[t] == key;
        float sum = same ? carry_sums[t] : 0.f;
#pragma unroll
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
        total += sum;
        more = __all_sync(ALL, same);
    }
    if (lane == 0) out[key] = total + out[key];
}
