// From images of any size to samples of one: crop, resize, colour, flip, normalise, lay out.
//
// A block makes a tile of one target, in steps. Windows and weights of its columns and rows come
// first. Then it goes down the source, so many rows at a time: first along the rows, into memory that
// its threads share, then down the columns, into sums that each thread keeps. So the tile needs the
// same memory for any reduction, nothing between the two passes leaves the multiprocessor, and
// samples are read from the device's memory once, apart from what neighbouring tiles share.
//
// Each component goes straight from its own resolution to the target's: chroma is never brought to
// the image's size first. Colours are converted once for each pixel of the target.
//
// To be compiled without fusing products and sums: what is to be fused says `fmaf`. So the host
// computes the same to the last bit.

constexpr int THREADS = 256;
constexpr int TILE_COLUMNS = 32;
// Rows that are taken together, one for each warp.
constexpr int LANES = THREADS / TILE_COLUMNS;
constexpr int TILE_ROWS = 2 * LANES;
constexpr int CHUNK_ROWS = 4 * LANES;

#ifdef __CUDACC__
#include "device.h"
#else
#include "host_shim.h"
#endif
#include "table.h"
#include "weights.h"
#include "values.h"
#include "color.h"

// What the threads of a block share.
struct Shared {
    Window columns[TILE_COLUMNS];
    Window rows[TILE_ROWS];
    // Some rows of the source, as wide as the tile.
    float between[3][CHUNK_ROWS][TILE_COLUMNS];
};

// What a thread keeps: the pixels of its column and rows.
struct Pixels {
    Pixel rows[TILE_ROWS / LANES];
};

// The tile's place in its target.
struct Place {
    int left;
    int top;
};

// Resizes components `FROM` to `FROM + COUNT`, which have the same sampling.
template <class Sample, int FROM, int COUNT>
DEVICE void resize(const Image &image, Place place, Shared &shared, PerThread<Pixels> &pixels)
{
    const Sampling &sampling = image.sampling[FROM > 0];
    const int filter = image.filter;
    // Between the passes a component cannot be more than its samples can where bytes are written, as
    // in PyTorch and Pillow with bytes; else it can, as in PyTorch with numbers.
    const bool is_limited = image.value_type == BYTES;
    const float highest = image.highest;
    each_thread([&](int thread) {
        // Beyond the target's end, its last one again.
        if (thread < TILE_COLUMNS) {
            int column = min(place.left + thread, image.width - 1);
            shared.columns[thread] = window_of(sampling.across, filter, column);
        } else if (thread < TILE_COLUMNS + TILE_ROWS) {
            int at = thread - TILE_COLUMNS;
            int row = min(place.top + at, image.height - 1);
            shared.rows[at] = window_of(sampling.down, filter, row);
        }
    });
    int first = shared.rows[0].first;
    int end = first;
    for (int at = 0; at < TILE_ROWS; at++)
        end = max(end, shared.rows[at].end);
#pragma unroll 1
    for (int start = first; start < end; start += CHUNK_ROWS) {
        const int rows = min(CHUNK_ROWS, end - start);
        each_thread([&](int thread) {
            const int column = thread % TILE_COLUMNS;
            const int lane = thread / TILE_COLUMNS;
            const Window window = shared.columns[column];
            float sums[CHUNK_ROWS / LANES][COUNT] = {};
#pragma unroll 1
            for (int at = window.first; at < window.end; at++) {
                float weight = weight_at(window, filter, at);
#pragma unroll
                for (int turn = 0; turn < CHUNK_ROWS / LANES; turn++) {
                    if (turn * LANES + lane >= rows)
                        break;
                    long long row = start + turn * LANES + lane;
#pragma unroll
                    for (int component = 0; component < COUNT; component++) {
                        const Component &source = image.components[FROM + component];
                        unsigned long long line = source.samples + row * source.pitch;
                        const Sample *samples = reinterpret_cast<const Sample *>(line);
                        float sample = read(samples + at * source.step);
                        sums[turn][component] = fmaf(weight, sample, sums[turn][component]);
                    }
                }
            }
#pragma unroll
            for (int turn = 0; turn < CHUNK_ROWS / LANES; turn++)
#pragma unroll
                for (int component = 0; component < COUNT; component++) {
                    float sum = sums[turn][component];
                    float limited = fminf(fmaxf(sum, 0.0f), highest);
                    shared.between[component][turn * LANES + lane][column] =
                        is_limited ? limited : sum;
                }
        });
        each_thread([&](int thread) {
            const int column = thread % TILE_COLUMNS;
            const int lane = thread / TILE_COLUMNS;
#pragma unroll
            for (int turn = 0; turn < TILE_ROWS / LANES; turn++) {
                Pixel &pixel = pixels.of(thread).rows[turn];
                const Window &window = shared.rows[turn * LANES + lane];
                int last = min(window.end, start + rows);
#pragma unroll 1
                for (int row = max(window.first, start); row < last; row++) {
                    float weight = weight_at(window, filter, row);
#pragma unroll
                    for (int component = 0; component < COUNT; component++) {
                        float value = shared.between[component][row - start][column];
                        float &sum = pixel.components[FROM + component];
                        sum = fmaf(weight, value, sum);
                    }
                }
            }
        });
    }
}

// Writes the tile in column `x` and row `y` of the tiles of an image's target.
template <class Sample, bool IS_SUBSAMPLED>
DEVICE void write_tile(const Image &image, int x, int y, Shared &shared)
{
    const Place place = {x * TILE_COLUMNS, y * TILE_ROWS};
    // Targets of one launch may differ in size.
    if (place.left >= image.width || place.top >= image.height)
        return;
    PerThread<Pixels> pixels;
    each_thread([&](int thread) { pixels.of(thread) = Pixels{}; });
    if constexpr (IS_SUBSAMPLED) {
        resize<Sample, 0, 1>(image, place, shared, pixels);
        resize<Sample, 1, 2>(image, place, shared, pixels);
    } else {
        resize<Sample, 0, 3>(image, place, shared, pixels);
    }
    each_thread([&](int thread) {
        const int column = place.left + thread % TILE_COLUMNS;
#pragma unroll
        for (int turn = 0; turn < TILE_ROWS / LANES; turn++) {
            const int row = place.top + turn * LANES + thread / TILE_COLUMNS;
            if (column >= image.width || row >= image.height)
                break;
            write_pixel(image, column, row, pixels.of(thread).rows[turn]);
        }
    });
}

// Named after the samples that are read, and whether chroma has fewer of them.
KERNEL(image_u8_whole, unsigned char, false)
KERNEL(image_u8_subsampled, unsigned char, true)
KERNEL(image_u16_whole, unsigned short, false)
KERNEL(image_u16_subsampled, unsigned short, true)
