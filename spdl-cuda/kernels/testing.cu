// Kernels for tests and measurements: a delay, a checksum, and an invalid access.

// Delays the stream.
extern "C" __global__ void delay(unsigned long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}

// Adds a checksum of the words to `sum`. The order of the threads does not change it.
extern "C" __global__ void checksum(const unsigned *words, unsigned count, unsigned long long *sum)
{
    unsigned long long part = 0;
    const unsigned step = gridDim.x * blockDim.x;
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
        const unsigned mixed = words[at] ^ (at * 0x9e3779b9u);
        part += (mixed * 0xd6e8feb86659fd93ull) ^ (mixed >> 7);
    }
    atomicAdd(sum, part);
}

// Writes to an invalid address.
extern "C" __global__ void fault()
{
    *reinterpret_cast<volatile int *>(16) = 1;
}
