// The primitives of the kernels on the device. `host_shim.h` defines the same names for the host.
#pragma once

#define DEVICE __device__ __forceinline__

// Runs a step in all threads of the block, followed by a barrier.
template <class Step>
DEVICE void each_thread(Step step)
{
    step(static_cast<int>(threadIdx.x));
    __syncthreads();
}

// A value per thread.
template <class T>
struct PerThread {
    T value;

    DEVICE T &of(int)
    {
        return value;
    }
};

// Reads memory that is constant while the kernel runs.
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
