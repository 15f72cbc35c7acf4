// The primitives of the kernels on the host: the threads of a block are iterations of a loop.
//
// A kernel is a sequence of steps. Within a step, no thread may read what another thread writes. So the
// iterations may run in any order; tests run them in both orders, and compare.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

using std::max;
using std::min;

#define DEVICE inline

static bool threads_in_reverse = false;

// Runs a step in all threads.
template <class Step>
inline void each_thread(Step step)
{
    for (int turn = 0; turn < THREADS; turn++)
        step(threads_in_reverse ? THREADS - 1 - turn : turn);
}

// A value per thread.
template <class T>
struct PerThread {
    T values[THREADS];

    T &of(int thread)
    {
        return values[thread];
    }
};

template <class T>
inline T read(const T *place)
{
    return *place;
}

inline unsigned bits_of(float value)
{
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of(unsigned bits)
{
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// A kernel runs one block at a time. Shared memory is initialised with NaN, so that reads before writes
// are detected.
#define KERNEL(name, Sample, IS_SUBSAMPLED)                                            \
    void name(const Image *images, int x, int y, int z)                                \
    {                                                                                  \
        static thread_local Shared shared;                                             \
        std::memset(static_cast<void *>(&shared), 0xff, sizeof shared);                \
        write_tile<Sample, IS_SUBSAMPLED>(images[z], x, y, shared);                    \
    }
