// The argument of a launch: a table with an entry per image.
//
// `src/kernels/table.rs` writes the same fields in the same order, without padding.
#pragma once

enum Filter { BILINEAR, BICUBIC };
enum ValueType { BYTES, HALVES, BFLOATS, FLOATS };

// One component: red, green or blue, or luma, Cb or Cr.
struct Component {
    // The address of the first sample.
    unsigned long long samples;
    // The distance between rows in bytes.
    long long pitch;
    // The distance between samples of a row, in samples.
    long long step;
};

// The source range on one axis of a component.
struct Axis {
    // The start of the source, and its extent per position of the target, in samples. Sample `i` covers
    // `i` to `i + 1`.
    double start;
    double scale;
    // The samples that the filter may read, from `first` to before `end`. Not empty.
    int first;
    int end;
};

struct Sampling {
    Axis across;
    Axis down;
};

// The conversion from components to RGB, 0 to 255: `matrix · (component − zero)`.
struct Color {
    double matrix[3][3];
    double zero[3];
    // Both, rounded to `float`.
    float matrix_rounded[3][3];
    float zero_rounded[3];
};

struct Image {
    Component components[3];
    // For the first component, and for the other two.
    Sampling sampling[2];
    Color color;
    // RGB is normalised as `value · scale + offset`, unless the output is bytes.
    float scale[3];
    float offset[3];
    // The address of the value of the target's first position and channel, and the strides, in values, to
    // the next position on both axes and to the next channel. They define layout, channel order, flips and
    // transposition.
    unsigned long long output;
    long long output_across;
    long long output_down;
    long long output_channel;
    // The size of the target, before transposition.
    int width;
    int height;
    // A `Filter`.
    int filter;
    // Whether the components are RGB.
    int is_rgb;
    // A `ValueType`.
    int value_type;
    // The largest sample value.
    float highest;
};

static_assert(sizeof(Image) == 392, "table.rs writes entries of this size");
