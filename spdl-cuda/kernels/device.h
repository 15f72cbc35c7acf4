// The kernels' language on the device; `host_shim.h` has the same names.
#pragma once

#define DEVICE __device__ __forceinline__

// Does a step in all threads; the next one begins when all have done it.
template <class Step>
DEVICE void each_thread(Step step)
{
    step(static_cast<int>(threadIdx.x));
    __syncthreads();
}

// What each thread has for itself.
template <class T>
struct PerThread {
    T value;

    DEVICE T &of(int)
    {
        return value;
    }
};

// Reads what nobody writes while the kernel runs.
template <class T>
DEVICE T read(const T *place)
{
    return __ldg(place);
}

DEVICE unsigned bits_of(float value)
{
    return __float_as_uint(value);
}

DEVICE float float_of(unsigned bits)
{
    return __uint_as_float(bits);
}

#define KERNEL(name, Sample, IS_SUBSAMPLED)                                            \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const Image *images)    \
    {                                                                                  \
        __shared__ Shared shared;                                                      \
        write_tile<Sample, IS_SUBSAMPLED>(images[blockIdx.z], blockIdx.x, blockIdx.y,  \
                                          shared);                                     \
    }
