/* A stub of nvJPEG without a device. Calls are counted and logged, and any call can be made to fail. If device
 * memory is host memory, the stub can write pixels: those of the comment segment after the SOI marker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { void *channel[4]; size_t pitch[4]; } image_t;
typedef struct { const unsigned char *data; size_t length; } stream_t;

#ifndef WRITES_PIXELS
#define WRITES_PIXELS 0
#endif
static _Atomic int live, calls;
static int failing_call, failing_status, engines = 2, hardware_status;
static int writes_pixels = WRITES_PIXELS;
static char text[1 << 16];

void stub_reset(void) { calls = failing_call = failing_status = hardware_status = 0; engines = 2; text[0] = 0; }
void stub_fail(int call, int status) { calls = 0; failing_call = call; failing_status = status; }
void stub_engines(int count, int status) { engines = count; hardware_status = status; }
void stub_write_pixels(int writes) { writes_pixels = writes; }
int stub_live(void) { return live; }
/* Live objects are no longer counted. */
void stub_forget(void) { live = 0; }
int stub_calls(void) { return calls; }
const char *stub_log(void) { return text; }

static void log_image(const char *format, size_t address, size_t pitch, size_t length) {
    size_t end = strlen(text);
    snprintf(text + end, sizeof text - end, format, address, pitch, length);
}
/* Functions that destroy objects never fail, and are not counted. */
#define CALL if (++calls == failing_call) return failing_status
static int make(void **object, size_t size) { CALL; *object = calloc(1, size); live++; return 0; }
static int end(void *object) { free(object); live--; return 0; }
static int is_bad(const unsigned char *data, size_t length) {
    return length >= 4 && !memcmp(data + length - 4, "BAD!", 4);
}

static void write_pixels(const unsigned char *data, size_t length, const image_t *image) {
    if (!writes_pixels || length < 6 || data[2] != 0xff || data[3] != 0xfe) return;
    size_t bytes = (data[4] << 8 | data[5]) - 2;
    if (length >= 6 + bytes) memcpy(image->channel[0], data + 6, bytes);
}

int nvjpegGetProperty(int type, int *value) { CALL; *value = type == 0 ? 13 : type; return 0; }
int nvjpegCreateEx(int backend, void *a, void *b, unsigned flags, void **handle) {
    (void)a, (void)b, (void)flags;
    if (backend == 3 && hardware_status) return hardware_status;
    return make(handle, 8);
}
int nvjpegDestroy(void *handle) { return end(handle); }
#ifndef TOO_OLD
int nvjpegGetHardwareDecoderInfo(void *handle, unsigned *count, unsigned *cores) {
    (void)handle; CALL; *count = engines; *cores = 4; return 0;
}
#endif
int nvjpegJpegStateCreate(void *handle, void **state) { (void)handle; return make(state, 8); }
int nvjpegJpegStateDestroy(void *state) { return end(state); }
int nvjpegDecodeBatchedInitialize(void *h, int *state, int count, int threads, int format) {
    (void)h, (void)threads, (void)format; CALL; *state = count; return 0;
}
int nvjpegDecodeBatchedSupported(void *h, stream_t *stream, int *answer) {
    (void)h; CALL; *answer = stream->data[stream->length - 1] == 'N'; return 0;
}
int nvjpegDecodeBatched(void *h, int *state, const unsigned char *const *data, const size_t *lengths,
                        image_t *images, void *cuda_stream) {
    (void)h, (void)cuda_stream; CALL;
    int count = *state;
    for (int i = 0; i < count; i++) if (is_bad(data[i], lengths[i])) return 3;
    for (int i = 0; i < count; i++) write_pixels(data[i], lengths[i], &images[i]);
    for (int i = 0; i < count; i++)
        log_image("engine %zu %zu %zu\n", (size_t)images[i].channel[0], images[i].pitch[0], lengths[i]);
    return 0;
}
int nvjpegJpegStreamCreate(void *h, void **stream) { (void)h; return make(stream, sizeof(stream_t)); }
int nvjpegJpegStreamDestroy(void *stream) { return end(stream); }
int nvjpegJpegStreamParseHeader(void *h, const unsigned char *data, size_t length, stream_t *stream) {
    (void)h; CALL; stream->data = data; stream->length = length; return 0;
}
static int parsed;
int stub_parsed(void) { return parsed; }
int nvjpegJpegStreamParse(void *h, const unsigned char *data, size_t length, int m, int s, stream_t *stream) {
    (void)h, (void)m, (void)s; CALL; parsed++; stream->data = data; stream->length = length; return 0;
}
/* The size in the first frame header; one column more if the file ends with "WIDE". */
int nvjpegJpegStreamGetFrameDimensions(stream_t *stream, unsigned *width, unsigned *height) {
    CALL;
    const unsigned char *data = stream->data;
    for (size_t at = 2; at + 9 <= stream->length; at += 2 + (data[at + 2] << 8 | data[at + 3])) {
        int kind = data[at + 1];
        if (data[at] != 0xff) break;
        if (kind < 0xc0 || kind > 0xcf || kind == 0xc4 || kind == 0xc8 || kind == 0xcc) continue;
        *height = data[at + 5] << 8 | data[at + 6];
        *width = data[at + 7] << 8 | data[at + 8];
        if (!memcmp(data + stream->length - 4, "WIDE", 4)) ++*width;
        return 0;
    }
    return 3;
}
int nvjpegDecodeParamsCreate(void *h, void **parameters) { (void)h; return make(parameters, 8); }
int nvjpegDecodeParamsDestroy(void *parameters) { return end(parameters); }
int nvjpegDecodeParamsSetOutputFormat(void *parameters, int format) {
    (void)parameters; CALL; return format == 5 ? 0 : 2;
}
int nvjpegDecoderCreate(void *h, int backend, void **decoder) {
    (void)h; return backend == 1 ? make(decoder, 8) : 2;
}
int nvjpegDecoderDestroy(void *decoder) { return end(decoder); }
int nvjpegDecoderStateCreate(void *h, void *decoder, void **state) {
    (void)h, (void)decoder; return make(state, 8);
}
int nvjpegBufferPinnedCreate(void *h, void *a, void **buffer) { (void)h, (void)a; return make(buffer, 8); }
int nvjpegBufferPinnedDestroy(void *buffer) { return end(buffer); }
int nvjpegBufferDeviceCreate(void *h, void *a, void **buffer) { (void)h, (void)a; return make(buffer, 8); }
int nvjpegBufferDeviceDestroy(void *buffer) { return end(buffer); }
int nvjpegStateAttachPinnedBuffer(void *state, void *buffer) { (void)state, (void)buffer; CALL; return 0; }
int nvjpegStateAttachDeviceBuffer(void *state, void *buffer) { (void)state, (void)buffer; CALL; return 0; }
int nvjpegDecodeJpegHost(void *h, void *d, stream_t **state, void *parameters, stream_t *stream) {
    (void)h, (void)d, (void)parameters; CALL;
    if (is_bad(stream->data, stream->length)) return 3;
    *state = stream;
    return 0;
}
int nvjpegDecodeJpegTransferToDevice(void *h, void *d, void *state, void *stream, void *cuda_stream) {
    (void)h, (void)d, (void)state, (void)stream, (void)cuda_stream; CALL; return 0;
}
int nvjpegDecodeJpegDevice(void *h, void *d, stream_t **state, image_t *image, void *cuda_stream) {
    (void)h, (void)d, (void)cuda_stream; CALL;
    write_pixels((*state)->data, (*state)->length, image);
    log_image("image %zu %zu %zu\n", (size_t)image->channel[0], image->pitch[0], (*state)->length);
    return 0;
}
