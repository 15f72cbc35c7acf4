/* A stub of libcuda without a device. Work completes immediately, any call can be made to fail, and live
 * objects are counted. `-DVERSION=11040` sets the CUDA version, `-DWITHOUT_NAME` omits a function. Linked
 * with `kernels.cpp`, it runs the kernels on the host. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 13000
#endif

typedef unsigned int code;
typedef unsigned long long address;

/* Live objects: contexts, current contexts, streams, events, device memory, pinned host memory, modules. */
enum { CONTEXTS, CURRENT, STREAMS, EVENTS, MEMORY, PINNED, MODULES, KINDS };
static atomic_long ledger[KINDS];
static atomic_long calls, failing = -1;
static code failure;
static char last_call[64];

void stub_fail(long call, code with) { failing = call; failure = with; calls = 0; }
long stub_calls(void) { return calls; }
long stub_ledger(int kind) { return ledger[kind]; }
const char *stub_last_call(void) { return last_call; }

/* The stream of the last wait and its event, and the streams of the last two records. */
static void *_Atomic waiting, *_Atomic recording, *_Atomic recording_before, *_Atomic awaited;
void *stub_waiting(void) { return waiting; }
void *stub_awaited(void) { return awaited; }
void *stub_recording(void) { return recording; }
void *stub_recording_before(void) { return recording_before; }

/* The captured stream, and the number of operations on it. */
static void *_Atomic captured;
static atomic_long disturbed;
void stub_capture(void *stream) { captured = stream; }
long stub_disturbed(void) { return disturbed; }
static void use_stream(void *stream) { disturbed += captured && stream == captured; }

/* Counts a call, and fails if `stub_fail` chose it. A failing call that releases an object releases it. */
#define CALL(name, release)                                                                         \
    do {                                                                                            \
        long number = calls++;                                                                      \
        if (number == failing) {                                                                    \
            strcpy(last_call, name);                                                                \
            release;                                                                                \
            return failure;                                                                         \
        }                                                                                           \
    } while (0)

/* CUDA_ERROR_INVALID_VALUE unless the flags and the priority of a stream or event are valid. */
static int check(int is_valid) { return is_valid ? 0 : 1; }

static void *create(int kind) { ledger[kind]++; return malloc(1); }
static void destroy(int kind, void *object) { ledger[kind]--; free(object); }

code cuInit(unsigned flags) { CALL("cuInit", ); return flags; }
code cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
code cuDeviceGetCount(int *count) { CALL("cuDeviceGetCount", ); *count = 1; return 0; }
code cuDeviceGet(int *device, int ordinal) {
    CALL("cuDeviceGet", );
    *device = ordinal;
    return ordinal == 0 ? 0 : 101;
}
code cuDeviceGetName(char *name, int length, int device) {
    CALL("cuDeviceGetName", );
    strncpy(name, "Stub", length);
    return device;
}
code cuDeviceGetAttribute(int *value, int attribute, int device) {
    CALL("cuDeviceGetAttribute", );
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute;
    return device;
}
code cuDeviceTotalMem_v2(size_t *bytes, int device) {
    CALL("cuDeviceTotalMem_v2", );
    *bytes = 1 << 30;
    return device;
}
code cuDevicePrimaryCtxRetain(void **context, int device) {
    CALL("cuDevicePrimaryCtxRetain", );
    ledger[CONTEXTS]++;
    *context = (void *)ledger;
    return device;
}
code cuDevicePrimaryCtxRelease_v2(int device) {
    CALL("cuDevicePrimaryCtxRelease_v2", ledger[CONTEXTS]--);
    ledger[CONTEXTS]--;
    return device;
}
code cuCtxPushCurrent_v2(void *context) {
    CALL("cuCtxPushCurrent_v2", );
    ledger[CURRENT]++;
    return context == (void *)ledger ? 0 : 201;
}
code cuCtxPopCurrent_v2(void **context) {
    CALL("cuCtxPopCurrent_v2", ledger[CURRENT]--);
    ledger[CURRENT]--;
    *context = (void *)ledger;
    return 0;
}
code cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int current;
    CALL("cuThreadExchangeStreamCaptureMode", );
    int was = current;
    current = *mode;
    *mode = was;
    return 0;
}
/* All functions below need a current context. */
#define CALL_IN_CONTEXT(name, release)                                                              \
    CALL(name, release);                                                                            \
    if (ledger[CURRENT] <= 0) return 201

code cuCtxSynchronize(void) { CALL_IN_CONTEXT("cuCtxSynchronize", ); return 0; }
code cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CALL_IN_CONTEXT("cuCtxGetStreamPriorityRange", );
    *least = 0;
    *greatest = -5;
    return 0;
}
code cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    CALL_IN_CONTEXT("cuStreamCreateWithPriority", );
    *stream = create(STREAMS);
    return check(flags == 1 && priority >= -5 && priority <= 0);
}
code cuStreamDestroy_v2(void *stream) {
    CALL_IN_CONTEXT("cuStreamDestroy_v2", destroy(STREAMS, stream));
    destroy(STREAMS, stream);
    return 0;
}
code cuStreamSynchronize(void *stream) {
    CALL_IN_CONTEXT("cuStreamSynchronize", );
    return stream ? 0 : 400;
}
code cuStreamIsCapturing(void *stream, int *status) {
    CALL_IN_CONTEXT("cuStreamIsCapturing", );
    *status = captured && stream == captured;
    return stream ? 0 : 400;
}
#ifndef WITHOUT_cuStreamWaitEvent
code cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    CALL_IN_CONTEXT("cuStreamWaitEvent", );
    waiting = stream;
    awaited = event;
    use_stream(stream);
    return stream && event ? flags : 400;
}
#endif
code cuEventCreate(void **event, unsigned flags) {
    CALL_IN_CONTEXT("cuEventCreate", );
    *event = create(EVENTS);
    return check(flags == 3 || flags == 1);
}
code cuEventDestroy_v2(void *event) {
    CALL_IN_CONTEXT("cuEventDestroy_v2", destroy(EVENTS, event));
    destroy(EVENTS, event);
    return 0;
}
code cuEventRecord(void *event, void *stream) {
    CALL_IN_CONTEXT("cuEventRecord", );
    recording_before = recording;
    recording = stream;
    use_stream(stream);
    return stream && event ? 0 : 400;
}
code cuEventQuery(void *event) {
    /* Every other query returns CUDA_ERROR_NOT_READY. */
    static atomic_long queries;
    CALL_IN_CONTEXT("cuEventQuery", );
    return !event ? 400 : queries++ % 2 ? 0 : 600;
}
code cuEventSynchronize(void *event) {
    CALL_IN_CONTEXT("cuEventSynchronize", );
    return event ? 0 : 400;
}
code cuMemAlloc_v2(address *memory, size_t bytes) {
    CALL_IN_CONTEXT("cuMemAlloc_v2", );
    if (bytes == 0) return 1;
    ledger[MEMORY]++;
    *memory = (address)malloc(bytes);
    return 0;
}
code cuMemFree_v2(address memory) {
    CALL_IN_CONTEXT("cuMemFree_v2", destroy(MEMORY, (void *)memory));
    destroy(MEMORY, (void *)memory);
    return 0;
}
code cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    CALL_IN_CONTEXT("cuMemHostRegister_v2", );
    if ((address)memory % 4096 || bytes % 4096 || flags != 1) return 1;
    ledger[PINNED]++;
    return 0;
}
code cuMemHostUnregister(void *memory) {
    CALL_IN_CONTEXT("cuMemHostUnregister", ledger[PINNED]--);
    ledger[PINNED]--;
    return memory ? 0 : 1;
}
code cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) {
    CALL_IN_CONTEXT("cuMemcpyHtoDAsync_v2", );
    memcpy((void *)to, from, bytes);
    return stream ? 0 : 400;
}
code cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) {
    CALL_IN_CONTEXT("cuMemcpyDtoHAsync_v2", );
    memcpy(to, (void *)from, bytes);
    return stream ? 0 : 400;
}
typedef struct {
    size_t from_x, from_y;
    unsigned from_kind;
    const void *from_host;
    address from;
    void *from_array;
    size_t from_pitch, to_x, to_y;
    unsigned to_kind;
    void *to_host;
    address to;
    void *to_array;
    size_t to_pitch, row_bytes, rows;
} rows_copy;
code cuMemcpy2DAsync_v2(const rows_copy *copy, void *stream) {
    CALL_IN_CONTEXT("cuMemcpy2DAsync_v2", );
    if (copy->from_kind != 2 || copy->to_kind != 2 || copy->from_x || copy->to_x) return 1;
    if (copy->row_bytes > copy->from_pitch || copy->row_bytes > copy->to_pitch) return 1;
    for (size_t row = 0; row < copy->rows; row++)
        memcpy((char *)copy->to + row * copy->to_pitch, (char *)copy->from + row * copy->from_pitch,
               copy->row_bytes);
    return stream ? 0 : 400;
}
code cuModuleLoadData(void **module, const void *image) {
    CALL_IN_CONTEXT("cuModuleLoadData", );
    *module = create(MODULES);
    return image ? 0 : 1;
}
code cuModuleUnload(void *module) {
    CALL_IN_CONTEXT("cuModuleUnload", destroy(MODULES, module));
    destroy(MODULES, module);
    return 0;
}
/* A function handle is the address of its name. */
static char names[8][64];
code cuModuleGetFunction(void **function, void *module, const char *name) {
    CALL_IN_CONTEXT("cuModuleGetFunction", );
    if (!module || !name[0]) return 500;
    for (int at = 0; at < 8; at++) {
        if (!names[at][0]) strncpy(names[at], name, 63);
        if (!strcmp(names[at], name)) {
            *function = names[at];
            return 0;
        }
    }
    return 500;
}
/* Runs a kernel whose only argument is the address of a table. */
__attribute__((weak)) int stub_run_kernel(const char *name, const void *table, const unsigned *grid);
code cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    CALL_IN_CONTEXT("cuLaunchKernel", );
    int is_valid = function && stream && parameters && !extra && gx * gy * gz * bx * by * bz && !shared;
    if (!is_valid) return 1;
    const unsigned grid[3] = {gx, gy, gz};
    return stub_run_kernel ? stub_run_kernel(function, *(void **)parameters[0], grid) : 0;
}
