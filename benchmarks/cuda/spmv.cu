// CSR SpMV, float32: y[i] = sum over p in row i of values[p] * x[indices[p]].

#include "loads.h"

constexpr int UNROLL = 4;

// The sum of *sum* over groups of LANES lanes, in a fixed tree.
template <int LANES>
__device__ __forceinline__ float group_sum(float sum)
{
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
    return sum;
}

// LANES lanes share a row; four elements of it are on their way in each.
template <int LANES>
__device__ __forceinline__ void spmv_rows(
    int rows, const int* __restrict__ indptr, const int* __restrict__ indices, const float* __restrict__ values,
    const float* __restrict__ x, float* __restrict__ y)
{
    const int lane = threadIdx.x % LANES;
    const int row = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int end = row < rows ? indptr[row + 1] : 0;
    int p = row < rows ? indptr[row] + lane : 0;
    float sum = 0.f;
#pragma unroll 1
    for (; p + (UNROLL - 1) * LANES < end; p += UNROLL * LANES) {
        int j[UNROLL];
        float a[UNROLL], b[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            j[u] = indices[p + u * LANES];
            a[u] = values[p + u * LANES];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) b[u] = x[j[u]];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum += a[u] * b[u];
    }
#pragma unroll
    for (int u = 0; u < UNROLL - 1; ++u)
        if (p + u * LANES < end) sum += values[p + u * LANES] * x[indices[p + u * LANES]];
    sum = group_sum<LANES>(sum);
    if (lane == 0 && row < rows) y[row] = sum;
}

// Grid: ceil(rows * LANES / 256) blocks; block: 256 threads. LANES is best near the mean length of rows.
#define CSR_SPMV(LANES)                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) csr_spmv_##LANES(                                           \
        int rows, const int* __restrict__ indptr, const int* __restrict__ indices, const float* __restrict__ values,  \
        const float* __restrict__ x, float* __restrict__ y)                                                           \
    {                                                                                                                 \
        spmv_rows<LANES>(rows, indptr, indices, values, x, y);                                                        \
    }
CSR_SPMV(4)
CSR_SPMV(8)
CSR_SPMV(16)
CSR_SPMV(32)

// One block for each of the rows that *long_rows* lists: 16-byte reads of indices and values between what precedes the
// first multiple of four and what follows the last one, two of each on their way.
// Grid: the number of long rows; block: 256 threads. indices and values are aligned to 16 bytes. The number of blocks for
// each processor is what lets ptxas have ten reads on their way instead of five, in as many registers.
extern "C" __global__ void __launch_bounds__(THREADS, 6) csr_spmv_long(
    const int* __restrict__ long_rows, const int* __restrict__ indptr, const int* __restrict__ indices,
    const float* __restrict__ values, const float* __restrict__ x, float* __restrict__ y)
{
    __shared__ float sums[THREADS / 32];
    const int row = long_rows[blockIdx.x];
    const int begin = indptr[row], end = indptr[row + 1];
    const int first = min((begin + 3) / 4 * 4, end), last = max(end / 4 * 4, first);
    float sum = 0.f;
    if (begin + (int)threadIdx.x < first) {
        const int p = begin + threadIdx.x;
        sum += values[p] * x[indices[p]];
    }
    const int4* const columns = reinterpret_cast<const int4*>(indices);
    const float4* const elements = reinterpret_cast<const float4*>(values);
    int q = first / 4 + threadIdx.x;
#pragma unroll 1
    for (; q + THREADS < last / 4; q += 2 * THREADS) {
        const int4 j = columns[q], j2 = columns[q + THREADS];
        const float4 a = elements[q], a2 = elements[q + THREADS];
        const float4 b = make_float4(x[j.x], x[j.y], x[j.z], x[j.w]);
        const float4 b2 = make_float4(x[j2.x], x[j2.y], x[j2.z], x[j2.w]);
        sum += a.x * b.x;
        sum += a.y * b.y;
        sum += a.z * b.z;
        sum += a.w * b.w;
        sum += a2.x * b2.x;
        sum += a2.y * b2.y;
        sum += a2.z * b2.z;
        sum += a2.w * b2.w;
    }
    if (q < last / 4) {
        const int4 j = columns[q];
        const float4 a = elements[q];
        sum += a.x * x[j.x];
        sum += a.y * x[j.y];
        sum += a.z * x[j.z];
        sum += a.w * x[j.w];
    }
    if (last + (int)threadIdx.x < end) {
        const int p = last + threadIdx.x;
        sum += values[p] * x[indices[p]];
    }
    sum = group_sum<32>(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < THREADS / 32 ? sums[threadIdx.x] : 0.f;
        sum = group_sum<THREADS / 32>(sum);
        if (threadIdx.x == 0) y[row] = sum;
    }
}
