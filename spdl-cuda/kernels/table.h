// What a launch is told: a table with an entry for each image.
//
// `src/kernels/table.rs` writes the same fields in the same order; there is no padding between them.
#pragma once

enum Filter { BILINEAR, BICUBIC };
enum ValueType { BYTES, HALVES, BFLOATS, FLOATS };

// One component of the pixels: red, green and blue, or luma and the two of chroma.
struct Component {
    // The sample of the first row and column.
    unsigned long long samples;
    // From a row to the next one, in bytes.
    long long pitch;
    // From a sample to the next one in its row, in samples.
    long long step;
};

// Where the positions of the target lie on one axis of a component.
struct Axis {
    // Where the part begins that becomes the target, and how much of it becomes one position, in
    // samples; sample `i` covers `i` to `i + 1`.
    double start;
    double scale;
    // The samples that the filter may see: not empty.
    int first;
    int end;
};

struct Sampling {
    Axis across;
    Axis down;
};

// From the components to red, green and blue, 0 to 255: `matrix · (component − zero)`.
struct Color {
    double matrix[3][3];
    double zero[3];
    // The same, rounded.
    float matrix_rounded[3][3];
    float zero_rounded[3];
};

struct Image {
    Component components[3];
    // Of the first component, and of the other two.
    Sampling sampling[2];
    Color color;
    // Red, green and blue become `value · scale + offset`, unless they are written as bytes.
    float scale[3];
    float offset[3];
    // The value of the target's first position and channel, and how many values it is from there to
    // the next position on either axis, and to the next channel. Layout, order of channels,
    // mirroring and turning are all in these.
    unsigned long long output;
    long long output_across;
    long long output_down;
    long long output_channel;
    // Of the target, on the axes of the source.
    int width;
    int height;
    // `BILINEAR` or `BICUBIC`.
    int filter;
    // Whether the components are red, green and blue already.
    int is_rgb;
    // `BYTES`, `HALVES`, `BFLOATS` or `FLOATS`.
    int value_type;
    // The largest sample.
    float highest;
};

static_assert(sizeof(Image) == 392, "table.rs writes entries of this size");
