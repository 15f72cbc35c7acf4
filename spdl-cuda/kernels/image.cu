// Turns images of any size into samples of one size: crop, resize, colour, flip, normalise, lay out.
//
// A block computes a tile of one target. It first computes the filter windows of the tile's columns and
// rows. Then it processes the source in chunks of rows: the horizontal pass writes to shared memory, the
// vertical pass adds to sums in registers. So the memory of a tile does not depend on the scale, the
// intermediate result stays on the multiprocessor, and each tile reads each of its samples once.
//
// Each component is resized directly from its own resolution to that of the target, without a separate
// chroma upsampling. Colours are converted once per pixel of the target.
//
// Compiled without contraction: only explicit `fmaf` is fused. So the host computes the same bits.

constexpr int THREADS = 256;
constexpr int TILE_COLUMNS = 32;
// Rows that are processed together, one per warp.
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

// The shared memory of a block.
struct Shared {
    Window columns[TILE_COLUMNS];
    Window rows[TILE_ROWS];
    // A chunk of source rows after the horizontal pass.
    float between[3][CHUNK_ROWS][TILE_COLUMNS];
};

// The pixels of a thread: those of its column and rows.
struct Pixels {
    Pixel rows[TILE_ROWS / LANES];
};

// The position of the tile in its target.
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
    // For output in bytes, components are clamped to the range of samples between the passes, as PyTorch
    // and Pillow do for bytes. For other types they are not, as in PyTorch for floating point.
    const bool is_limited = image.value_type == BYTES;
    const float highest = image.highest;
    each_thread([&](int thread) {
        // Beyond the edge of the target, the last column or row is repeated.
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

// Writes tile (`x`, `y`) of the target of an image.
template <class Sample, bool IS_SUBSAMPLED>
DEVICE void write_tile(const Image &image, int x, int y, Shared &shared)
{
    const Place place = {x * TILE_COLUMNS, y * TILE_ROWS};
    // Targets of one launch may differ in size, so the tile may be outside this target.
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

// Named by the type of the source samples, and whether chroma is subsampled.
KERNEL(image_u8_whole, unsigned char, false)
KERNEL(image_u8_subsampled, unsigned char, true)
KERNEL(image_u16_whole, unsigned short, false)
KERNEL(image_u16_subsampled, unsigned short, true)
