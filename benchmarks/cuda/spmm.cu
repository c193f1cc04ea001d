// CSR SpMM by rows, float32: C[i, :] = sum over p in row i of values[p] * B[indices[p], :]; and with the softmax of a row's
// values in their place (edge softmax and aggregation of a graph attention layer in one kernel; empty rows are zero).
//
// F / 4 lanes share a row (8 for F = 32, so four rows a warp; 32 for F = 128), each with four columns: a row of B is read
// in 16-byte lanes. Lanes read one index and one value each, coalesced, the next chunk's while this one is worked on;
// shuffles hand them out. Four rows of B are on their way at a time. Rows of a warp go in step, so that shuffles have
// all lanes: without conditions as far as the shortest row, then with one for each load. Nothing is multiplied by
// a zero of padding, since the row of B may hold an infinity.
//
// Grid: ceil(rows * F / 4 / 256) blocks; block: 256 threads. B and C are aligned to 16 bytes.

#include "loads.h"

constexpr int UNROLL = 4;

__device__ __forceinline__ void add_product(float4& sum, float a, float4 b)
{
    sum.x += a * b.x;
    sum.y += a * b.y;
    sum.z += a * b.z;
    sum.w += a * b.w;
}

// The value itself as its weight.
struct Values {
    template <int LANES> __device__ __forceinline__ void read_row(const float*, int, int) {}
    __device__ __forceinline__ float weight(float value) const { return value; }
    __device__ __forceinline__ float scale() const { return 1.f; }
};

// The softmax of a row's values: one pass for the greatest and the sum, rescaled whenever a greater one is met.
struct Softmax {
    float most = -INFINITY, total = 0.f;

    __device__ __forceinline__ void include(float other, float sum)
    {
        const float greater = fmaxf(most, other);
        if (greater == -INFINITY) return;
        total = total * __expf(most - greater) + sum * __expf(other - greater);
        most = greater;
    }
    template <int LANES> __device__ __forceinline__ void read_row(const float* values, int length, int lane)
    {
        for (int p = lane; p < length; p += LANES) include(values[p], 1.f);
#pragma unroll
        for (int step = LANES / 2; step; step /= 2)
            include(__shfl_xor_sync(ALL, most, step), __shfl_xor_sync(ALL, total, step));
    }
    __device__ __forceinline__ float weight(float value) const { return __expf(value - most); }
    __device__ __forceinline__ float scale() const { return total == 0.f ? 0.f : 1.f / total; }
};

template <int F, class Weights>
__device__ __forceinline__ void spmm_rows(
    int rows, const int* __restrict__ indptr, const int* __restrict__ indices, const float* __restrict__ values,
    const float* __restrict__ B, float* __restrict__ C)
{
    constexpr int LANES = F / 4;
    static_assert(LANES >= UNROLL && LANES <= 32 && (LANES & (LANES - 1)) == 0, "a power of two of lanes in a warp");
    const int lane = threadIdx.x % LANES;
    const int row = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int begin = row < rows ? indptr[row] : 0;
    const int length = row < rows ? indptr[row + 1] - begin : 0;
    int shortest = length, longest = length;
#pragma unroll
    for (int step = LANES; step < 32; step *= 2) {
        shortest = min(shortest, __shfl_xor_sync(ALL, shortest, step));
        longest = max(longest, __shfl_xor_sync(ALL, longest, step));
    }
    constexpr long long BYTES = F * sizeof(float);
    const char* const columns = opaque(reinterpret_cast<const char*>(B) + lane * sizeof(float4));
    Weights weights;
    weights.template read_row<LANES>(values + begin, length, lane);
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    int next_index = lane < length ? indices[begin + lane] : 0;
    float next_value = lane < length ? values[begin + lane] : 0.f;
    for (int chunk = 0; chunk < longest; chunk += LANES) {
        const int index = next_index;
        const float value = weights.weight(next_value);
        const int ahead = chunk + LANES + lane;
        if (ahead < length) {
            next_index = indices[begin + ahead];
            next_value = values[begin + ahead];
        }
        const int whole = min(LANES, shortest - chunk);
        const int all = min(LANES, longest - chunk);
        int k = 0;
#pragma unroll 1
        for (; k + UNROLL <= whole; k += UNROLL) {
            float a[UNROLL];
            float4 b[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                b[u] = load(columns + __shfl_sync(ALL, index, k + u, LANES) * BYTES);
                a[u] = __shfl_sync(ALL, value, k + u, LANES);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) add_product(sum, a[u], b[u]);
        }
#pragma unroll 1
        for (; k < all; k += UNROLL) {
            const int left = length - chunk - k;
            float a[UNROLL];
            float4 b[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int from = k + max(min(u, left - 1), 0);
                b[u] = load(columns + __shfl_sync(ALL, index, from, LANES) * BYTES);
                a[u] = __shfl_sync(ALL, value, from, LANES);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (u < left) add_product(sum, a[u], b[u]);
        }
    }
    const float scale = weights.scale();
    const float4 scaled = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
    if (row < rows) reinterpret_cast<float4*>(C)[(long long)row * LANES + lane] = scaled;
}

#define CSR_SPMM(NAME, WEIGHTS, F)                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME##_##F(                                                 \
        int rows, const int* __restrict__ indptr, const int* __restrict__ indices, const float* __restrict__ values,  \
        const float* __restrict__ B, float* __restrict__ C)                                                           \
    {                                                                                                                 \
        spmm_rows<F, WEIGHTS>(rows, indptr, indices, values, B, C);                                                   \
    }
CSR_SPMM(csr_spmm, Values, 32)
CSR_SPMM(csr_spmm, Values, 128)
CSR_SPMM(csr_softmax_spmm, Softmax, 32)
CSR_SPMM(csr_softmax_spmm, Softmax, 128)
