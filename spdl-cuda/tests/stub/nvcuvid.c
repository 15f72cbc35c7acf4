/* A stub of libnvcuvid without a device. The parser executes the commands in packets. All calls are
 * validated, counted and logged. Structures are declared independently, from the headers of the library.
 *
 * A packet is a sequence of commands of one letter each:
 *   S format   sequence header; `format` is the structure below
 *   D i s      decode picture i, with the later decode status s (255: status unavailable)
 *   P i        display picture i
 *   Q i        display picture i at the end of the stream
 *   E i        decode the second field of picture i
 *   Z          display callback without a picture: end of display
 *   H          ignore failures of callbacks until the end of the packet
 *   F, G       sequence or decode callback with a null pointer
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned int code;
typedef unsigned long long address;
typedef struct { int left, top, right, bottom; } area;
typedef struct { short left, top, right, bottom; } small_area;

typedef struct {
    int codec, chroma; unsigned bits; unsigned reserved[3];
    unsigned char supported, engines; unsigned short formats;
    unsigned max_width, max_height, max_blocks; unsigned short min_width, min_height;
    unsigned char histogram, counter; unsigned short bins; unsigned reserved3[10];
} capabilities;
typedef struct {
    unsigned long width, height, surfaces; int codec, chroma; unsigned long flags, bits, intra;
    unsigned long max_width, max_height, reserved; small_area display; int format, deinterlace;
    unsigned long target_width, target_height, output_surfaces; void *lock; small_area target;
    unsigned long histogram, reserved2[4];
} creation;
typedef struct {
    unsigned width, height, target_width, target_height, surfaces, reserved[12];
    small_area display, target; unsigned reserved2[11];
} configuration;
typedef struct { int codec; unsigned rate[2]; unsigned char progressive, luma, chroma_bits, surfaces;
    unsigned width, height; area display; int chroma; unsigned bit_rate; int aspect[2];
    unsigned char signal, primaries, transfer, matrix; unsigned header; } format;
typedef struct { int width, height, index, field, bottom, second; char rest[4256]; } picture;
typedef struct { int index, progressive, top_first, repeat; long long timestamp; } shown;
typedef struct { int progressive, second, top_first, unpaired; unsigned zero[2]; address raw; unsigned raw2[2];
    address raw3; unsigned raw4[2]; void *stream; unsigned reserved[46]; void *histogram, *reserved2; } processing;
typedef struct { int status; unsigned reserved[31]; void *pointers[8]; } decode_status;
typedef struct { unsigned long flags, size; const unsigned char *data; long long timestamp; } packet;
typedef struct {
    int codec; unsigned surfaces, clock, threshold, delay, flags, reserved[4]; void *user;
    int (*sequence)(void *, format *); int (*decode)(void *, picture *); int (*display)(void *, shown *);
    int (*point)(void *, void *); void *reserved2[6]; void *extended;
} parameters;

enum { PARSER = 1, DECODER, LOCK };
typedef struct { int kind; parameters params; int waiting[64], count; long long times[256]; } parser;
typedef struct { int kind, users; } context_lock;
typedef struct { int kind; creation made; unsigned width, height; int mapped; address at; unsigned area, next;
    unsigned char status[256]; } decoder;

static long live[4], mapped, calls, failing, wrong;
static code failure;
static char last_call[64], text[1 << 18];
static address memory;
static unsigned areas, next_area, slots, pitch;
static size_t slot_bytes;
static void (*on_map)(address, size_t, size_t), (*on_destroy)(void);

/* Live objects are no longer counted, because a lost device leaks them. */
void stub_reset(void) {
    calls = failing = wrong = mapped = 0; text[0] = 0; on_map = 0; on_destroy = 0; memset(live, 0, sizeof live);
}
void stub_fail(long call, code with) { calls = 0; failing = call; failure = with; last_call[0] = 0; }
long stub_calls(void) { return calls; }
long stub_live(void) { return live[PARSER] + live[DECODER] + live[LOCK] + mapped; }
/* The number of invalid calls. */
long stub_wrong(void) { return wrong; }
const char *stub_log(void) { return text; }
const char *stub_last_call(void) { return last_call; }
/* Sets the surfaces: the address of the first, the number of decoders with surfaces (used in turn), surfaces
 * per decoder, bytes per surface, and bytes per row. */
void stub_surfaces(address at, unsigned decoders, unsigned count, size_t bytes, unsigned row) {
    memory = at; areas = decoders; next_area = 0; slots = count; slot_bytes = bytes; pitch = row;
}
/* Sets a function that is called when a surface is mapped: with address, bytes and stream. */
void stub_on_map(void (*call)(address, size_t, size_t)) { on_map = call; }
/* Sets a function that is called when a decoder and its surfaces are destroyed. */
void stub_on_destroy(void (*call)(void)) { on_destroy = call; }

#define LOG(...) do { size_t end = strlen(text); snprintf(text + end, sizeof text - end, __VA_ARGS__); } while (0)
#define CALL(name) if (++calls == failing) { strcpy(last_call, name); return failure; }
static code complain(const char *what) { wrong++; LOG("WRONG %s\n", what); return 1; }
static void *make(int kind, size_t size) { int *it = calloc(1, size); *it = kind; live[kind]++; return it; }
static code end(int kind, void *it) {
    if (!it || *(int *)it != kind) return complain("invalid object destroyed");
    *(int *)it = 0; live[kind]--; free(it); return 0;
}
static decoder *alive(void *it) { return it && *(int *)it == DECODER ? it : 0; }

code cuvidGetDecoderCaps(capabilities *caps) {
    CALL("cuvidGetDecoderCaps");
    LOG("caps %d %d %d\n", caps->codec, caps->chroma, caps->bits + 8);
    /* As on Hopper: no AV1, H.264 only with 8 bits, 4:4:4 only for HEVC, no 4:2:2. Unlike on Hopper, the output of
     * VP9 has only 8 bits. */
    int ok = (caps->codec == 4 && caps->bits == 0 && caps->chroma <= 1)
        || (caps->codec == 8 && caps->bits <= 4 && caps->chroma != 2)
        || (caps->codec == 10 && caps->chroma == 1);
    if (!ok) return 0;
    caps->supported = 1; caps->engines = 7; caps->formats = caps->chroma == 3 ? 4 | 8 : caps->codec == 10 ? 1 : 1 | 2;
    caps->max_width = caps->max_height = 8192; caps->max_blocks = 65536;
    caps->min_width = 48; caps->min_height = 16;
    return 0;
}
code cuvidCreateDecoder(void **made, creation *info) {
    CALL("cuvidCreateDecoder");
    if (!info->lock || *(int *)info->lock != LOCK) return complain("no lock");
    if (info->width > info->max_width || info->height > info->max_height) return complain("size");
    if (info->surfaces < 1 || info->output_surfaces < 1) return complain("surfaces");
    /* If no surfaces are set, as in a separate process, they are host memory. */
    if (!areas) stub_surfaces((address)calloc(8, 1 << 16), 4, 2, 1 << 16, 256);
    decoder *it = *made = make(DECODER, sizeof *it);
    it->made = *info; it->width = info->width; it->height = info->height;
    it->area = next_area++ % areas;
    ((context_lock *)info->lock)->users++;
    LOG("create %lux%lu of %lux%lu, %lu surfaces, codec %d, chroma %d, bits %lu, format %d\n", info->width,
        info->height, info->max_width, info->max_height, info->surfaces, info->codec, info->chroma,
        info->bits + 8, info->format);
    return 0;
}
code cuvidDestroyDecoder(void *it) {
    if (alive(it)) { mapped -= alive(it)->mapped; ((context_lock *)alive(it)->made.lock)->users--; }
    LOG("destroy\n");
    if (on_destroy) on_destroy();
    return end(DECODER, it);
}
code cuvidReconfigureDecoder(void *handle, configuration *info) {
    CALL("cuvidReconfigureDecoder");
    decoder *it = alive(handle);
    if (!it || it->mapped) return complain("reconfigured while mapped");
    if (info->width > it->made.max_width || info->height > it->made.max_height
        || info->surfaces != it->made.surfaces) return complain("reconfigured beyond");
    it->width = info->width; it->height = info->height;
    LOG("configure %ux%u\n", info->width, info->height);
    return 0;
}
code cuvidDecodePicture(void *handle, picture *params) {
    CALL("cuvidDecodePicture");
    decoder *it = alive(handle);
    if (!it || params->index < 0 || (unsigned long)params->index >= it->made.surfaces) return complain("picture");
    it->status[params->index] = params->rest[0];
    LOG("decode %d\n", params->index);
    return 0;
}
code cuvidGetDecodeStatus(void *handle, int index, decode_status *result) {
    CALL("cuvidGetDecodeStatus");
    decoder *it = alive(handle);
    if (!it) return complain("status");
    if (it->status[index] == 255) return 801;
    result->status = it->status[index];
    return 0;
}
code cuvidMapVideoFrame64(void *handle, int index, address *at, unsigned *row, processing *how) {
    CALL("cuvidMapVideoFrame64");
    decoder *it = alive(handle);
    if (!it || !how->stream) return complain("mapped on no stream");
    if (it->mapped >= (int)it->made.output_surfaces) return complain("mapped too often");
    it->mapped++; mapped++;
    *at = it->at = memory + (it->area * slots + it->next++ % slots) * slot_bytes;
    *row = pitch;
    LOG("map %d\n", index);
    if (on_map) on_map(*at, slot_bytes, (size_t)how->stream);
    return 0;
}
code cuvidUnmapVideoFrame64(void *handle, address at) {
    CALL("cuvidUnmapVideoFrame64");
    decoder *it = alive(handle);
    if (!it || !it->mapped || it->at != at) return complain("unmapped surface that is not mapped");
    it->mapped--; mapped--;
    LOG("unmap\n");
    return 0;
}
code cuvidCtxLockCreate(void **lock, void *context) {
    (void)context; CALL("cuvidCtxLockCreate"); *lock = make(LOCK, sizeof(context_lock)); return 0;
}
code cuvidCtxLockDestroy(void *lock) {
    if (((context_lock *)lock)->users) complain("destroyed lock in use by decoders");
    return end(LOCK, lock);
}
code cuvidCreateVideoParser(void **made, parameters *params) {
    CALL("cuvidCreateVideoParser");
    parser *it = *made = make(PARSER, sizeof *it);
    it->params = *params;
    return 0;
}
#ifndef TOO_OLD
code cuvidParseVideoData(void *handle, packet *input) {
    CALL("cuvidParseVideoData");
    parser *it = handle;
    if (!it || it->kind != PARSER) return complain("invalid parser");
    parameters *to = &it->params;
    if (input->flags & 4) LOG("discontinuity\n");
    int ignores_failures = 0;
#define CALLBACK(call) \
    do { int result = call; LOG("-> %d\n", result); if (result < 1 && !ignores_failures) return 999; } while (0)
    for (unsigned long i = 0; i < input->size;) {
        const unsigned char *at = input->data + i;
        shown show = { (signed char)at[1], 1, 1, 0, 0 };
        show.timestamp = it->times[at[1]];
        picture what; memset(&what, 0, sizeof what);
        what.index = (signed char)at[1];
        switch (*at) {
        case 'S': { format is; memcpy(&is, at + 1, sizeof is); i += 1 + sizeof is; CALLBACK(to->sequence(to->user, &is)); break; }
        case 'D':
            it->times[at[1]] = input->flags & 2 ? input->timestamp : -1;
            what.rest[0] = at[2]; i += 3; CALLBACK(to->decode(to->user, &what)); break;
        case 'E': what.second = what.field = 1; what.rest[0] = 2; i += 2; CALLBACK(to->decode(to->user, &what)); break;
        case 'P': i += 2; CALLBACK(to->display(to->user, &show)); break;
        case 'Q': i += 2; it->waiting[it->count++ % 64] = at[1]; break;
        case 'Z': i += 1; CALLBACK(to->display(to->user, 0)); break;
        case 'H': i += 1; ignores_failures = 1; break;
        case 'F': i += 1; CALLBACK(to->sequence(to->user, 0)); break;
        case 'G': i += 1; CALLBACK(to->decode(to->user, 0)); break;
        default: return complain("command");
        }
    }
    if (input->flags & 1) {
        for (int i = 0; i < it->count; i++) {
            shown show = { it->waiting[i], 1, 1, 0, it->times[it->waiting[i] & 255] };
            CALLBACK(to->display(to->user, &show));
        }
        it->count = 0;
    }
    return 0;
}
#endif
code cuvidDestroyVideoParser(void *it) { return end(PARSER, it); }
