/* Wrappers of driver calls of the libcuda stub that free resources. They count the calls, and the
 * calls with the GIL held. The stub's functions are compiled under the names below. */
#include <stdatomic.h>

typedef unsigned int code;
typedef unsigned long long address;

int PyGILState_Check(void);

static atomic_long made, with_gil;
long gil_calls(void) { return made; }
long gil_calls_with_gil(void) { return with_gil; }

static void count(void) {
    made++;
    with_gil += PyGILState_Check();
}

code stub_cuEventRecord(void *event, void *stream);
code cuEventRecord(void *event, void *stream) {
    count();
    return stub_cuEventRecord(event, stream);
}
code stub_cuCtxSynchronize(void);
code cuCtxSynchronize(void) {
    count();
    return stub_cuCtxSynchronize();
}
code stub_cuMemFree_v2(address memory);
code cuMemFree_v2(address memory) {
    count();
    return stub_cuMemFree_v2(memory);
}
code stub_cuDevicePrimaryCtxRelease_v2(int device);
code cuDevicePrimaryCtxRelease_v2(int device) {
    count();
    return stub_cuDevicePrimaryCtxRelease_v2(device);
}
