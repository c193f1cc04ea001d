// What the kernels share: their block, and reads of 16 bytes.
#pragma once

constexpr int THREADS = 256;
constexpr unsigned ALL = 0xffffffffu;

// Lets nvcc forget how *pointer* was computed. Without it the lane is added to each index instead of once to the base, and
// an address costs four or five instructions instead of one.
__device__ __forceinline__ const char* opaque(const char* pointer)
{
#ifdef __CUDACC__
    asm("" : "+l"(pointer));
#endif
    return pointer;
}

__device__ __forceinline__ float4 load(const char* address)
{
    return __ldg(reinterpret_cast<const float4*>(address));
}
