// The kernels' language on the host: every thread of a block is a turn of a loop.
//
// A kernel is a sequence of steps, and in each of them no thread may read what another one writes. So
// the turns can be taken in any order; tests take them in both, and compare.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

using std::max;
using std::min;

#define DEVICE inline

static bool threads_in_reverse = false;

// Does a step in all threads.
template <class Step>
inline void each_thread(Step step)
{
    for (int turn = 0; turn < THREADS; turn++)
        step(threads_in_reverse ? THREADS - 1 - turn : turn);
}

// What each thread has for itself.
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

// A kernel runs for one block at a time. What threads share begins as NaN: nobody may use what was
// not written.
#define KERNEL(name, Sample, IS_SUBSAMPLED)                                            \
    void name(const Image *images, int x, int y, int z)                                \
    {                                                                                  \
        static thread_local Shared shared;                                             \
        std::memset(static_cast<void *>(&shared), 0xff, sizeof shared);                \
        write_tile<Sample, IS_SUBSAMPLED>(images[z], x, y, shared);                    \
    }
