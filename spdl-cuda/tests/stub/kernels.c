/* The functions of libcuda that measurements and consumers call beyond `cuda.c`, and host versions of the
 * kernels of testing.cu. Wraps some functions of `cuda.c`, which is compiled with other names for them:
 * `-DcuInit=plain_cuInit` and so on, for all `plain_` functions below. Definitions of `cuda.c` override the
 * weak ones. Linked with `kernels.cpp`, it also runs the kernels for images. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned int code;
typedef unsigned long long address;

code plain_cuInit(unsigned flags);
code plain_cuCtxPushCurrent_v2(void *context);
code plain_cuStreamSynchronize(void *stream);
code plain_cuMemAlloc_v2(address *memory, size_t bytes);
code plain_cuMemFree_v2(address memory);
code plain_cuModuleGetFunction(void **function, void *module, const char *name);
code plain_cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void *stream, void **parameters, void **extra);

#define WEAK __attribute__((weak))

/* The device memory in bytes. */
static const size_t all = 256 << 20;
static size_t used;
/* Whether the kernel `fault` has run. */
static int lost;
static const char *const names[] = {"delay", "checksum", "fault"};

code cuInit(unsigned flags) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && !*visible ? 100 : plain_cuInit(flags);
}
code cuCtxPushCurrent_v2(void *context) { return lost ? 700 : plain_cuCtxPushCurrent_v2(context); }
code cuStreamSynchronize(void *stream) { return lost ? 700 : plain_cuStreamSynchronize(stream); }

code cuMemAlloc_v2(address *memory, size_t bytes) {
    if (used + bytes > all) return 2;
    code failed = plain_cuMemAlloc_v2(memory, bytes);
    if (!failed) used += malloc_usable_size((void *)*memory);
    return failed;
}
code cuMemFree_v2(address memory) {
    used -= malloc_usable_size((void *)memory);
    return plain_cuMemFree_v2(memory);
}
WEAK code cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = used < all ? all - used : 0;
    *total = all;
    return 0;
}
WEAK code cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return flags & 1 && *memory ? 0 : 1;
}
WEAK code cuMemFreeHost(void *memory) { free(memory); return 0; }
WEAK code cuDeviceGetPCIBusId(char *text, int length, int device) {
    strncpy(text, "FFFF:00:00.0", length);
    return device;
}

static void *capturing;
WEAK code cuStreamBeginCapture_v2(void *stream, unsigned mode) { capturing = stream; return mode; }
WEAK code cuStreamEndCapture(void *stream, void **graph) {
    *graph = (void *)names;
    return stream == capturing ? 0 : 901;
}
WEAK code cuGraphDestroy(void *graph) { return graph == names ? 0 : 400; }

code cuModuleGetFunction(void **function, void *module, const char *name) {
    code failed = plain_cuModuleGetFunction(function, module, name);
    for (int at = 0; !failed && at < 3; at++)
        if (!strcmp(name, names[at])) *function = (void *)&names[at];
    return failed;
}
code cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    int is_own = function == &names[0] || function == &names[1] || function == &names[2];
    if (!is_own) return plain_cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
    if (!stream || !parameters || extra || !(gx * gy * gz * bx * by * bz) || shared) return 1;
    if (function == &names[1]) {
        const unsigned *words = *(const unsigned **)parameters[0];
        unsigned count = *(unsigned *)parameters[1];
        address *sum = *(address **)parameters[2];
        for (unsigned at = 0; at < count; at++) {
            unsigned mixed = words[at] ^ at * 0x9e3779b9u;
            *sum += mixed * 0xd6e8feb86659fd93ull ^ mixed >> 7;
        }
    }
    lost |= function == &names[2];
    return 0;
}
