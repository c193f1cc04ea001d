// SDDMM over non-zeros, float32: out[p] = values[p] * dot(X[row_of[p], :], Y[column_of[p], :]).
//
// Eight lanes share N non-zeros at a time (4 for F = 32, 2 for F = 128), each with every eighth float4 of their rows, so that
// 8 to 16 reads of 16 bytes are on their way. A butterfly that halves the number of sums at each step leaves one sum in
// every 8 / N lanes: N - 1 + log2(8 / N) shuffles instead of 3 N.
//
// Grid: any number of blocks, at best what fills the GPU (a warp goes on to the next 4 N non-zeros of the grid);
// block: 256 threads. X, Y, row_of and column_of are aligned to 16 bytes; nnz + gridDim.x * 128 is below 2^32.

#include "loads.h"

constexpr int LANES = 8;

// The sum over 8 lanes of sums[lane * N / 8], in a fixed tree.
template <int N>
__device__ __forceinline__ float group_sums(float (&sums)[N], int lane)
{
    int step = LANES / 2;
#pragma unroll
    for (int count = N; count > 1; count /= 2, step /= 2) {
        const bool upper = lane & step;
#pragma unroll
        for (int u = 0; u < count / 2; ++u) {
            const float given = upper ? sums[u] : sums[u + count / 2];
            const float kept = upper ? sums[u + count / 2] : sums[u];
            sums[u] = kept + __shfl_xor_sync(ALL, given, step);
        }
    }
#pragma unroll
    for (; step; step /= 2) sums[0] += __shfl_xor_sync(ALL, sums[0], step);
    return sums[0];
}

// N indices that follow each other, from a multiple of N on.
template <int N> struct Indices;
template <> struct Indices<2> { using Vector = int2; };
template <> struct Indices<4> { using Vector = int4; };

template <int N>
__device__ __forceinline__ void read_indices(int (&found)[N], const int* __restrict__ source, unsigned p, unsigned nnz)
{
    if (p + N <= nnz) {
        using Vector = typename Indices<N>::Vector;
        *reinterpret_cast<Vector*>(found) = *reinterpret_cast<const Vector*>(source + p);
    } else {
#pragma unroll
        for (int u = 0; u < N; ++u) found[u] = source[min(p + u, nnz - 1)];
    }
}

template <int F, int N>
__device__ __forceinline__ void sddmm(
    int nnz, const int* __restrict__ row_of, const int* __restrict__ column_of, const float* __restrict__ values,
    const float* __restrict__ X, const float* __restrict__ Y, float* __restrict__ out)
{
    constexpr int VECTORS = F / 4 / LANES, GROUPS = 32 / LANES;
    const int lane = threadIdx.x % LANES, group = threadIdx.x % 32 / LANES;
    constexpr long long BYTES = F * sizeof(float);
    const char* const left = opaque(reinterpret_cast<const char*>(X) + lane * sizeof(float4));
    const char* const right = opaque(reinterpret_cast<const char*>(Y) + lane * sizeof(float4));
    const unsigned stride = gridDim.x * (THREADS / LANES) * N;
    unsigned first = (blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * GROUPS * N;
#pragma unroll 1
    for (; first < nnz; first += stride) {
        const unsigned p = first + group * N;
        alignas(16) int i[N], j[N];
        read_indices(i, row_of, p, nnz);
        read_indices(j, column_of, p, nnz);
        float4 x[N][VECTORS], y[N][VECTORS];
#pragma unroll
        for (int u = 0; u < N; ++u)
#pragma unroll
            for (int t = 0; t < VECTORS; ++t) {
                x[u][t] = load(left + i[u] * BYTES + t * LANES * sizeof(float4));
                y[u][t] = load(right + j[u] * BYTES + t * LANES * sizeof(float4));
            }
        float sums[N];
#pragma unroll
        for (int u = 0; u < N; ++u) {
            sums[u] = 0.f;
#pragma unroll
            for (int t = 0; t < VECTORS; ++t) {
                sums[u] += x[u][t].x * y[u][t].x;
                sums[u] += x[u][t].y * y[u][t].y;
                sums[u] += x[u][t].z * y[u][t].z;
                sums[u] += x[u][t].w * y[u][t].w;
            }
        }
        const float sum = group_sums<N>(sums, lane);
        const unsigned q = p + lane * N / LANES;
        if (lane % (LANES / N) == 0 && q < nnz) out[q] = values[q] * sum;
    }
}

// The numbers of blocks for each processor let ptxas have all reads on their way; without them it saves registers.
extern "C" __global__ void __launch_bounds__(THREADS, 5) sddmm_32(
    int nnz, const int* __restrict__ row_of, const int* __restrict__ column_of, const float* __restrict__ values,
    const float* __restrict__ X, const float* __restrict__ Y, float* __restrict__ out)
{
    sddmm<32, 4>(nnz, row_of, column_of, values, X, Y, out);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) sddmm_128(
    int nnz, const int* __restrict__ row_of, const int* __restrict__ column_of, const float* __restrict__ values,
    const float* __restrict__ X, const float* __restrict__ Y, float* __restrict__ out)
{
    sddmm<128, 2>(nnz, row_of, column_of, values, X, Y, out);
}
