// Colour conversion from components to RGB, and the output values.
#pragma once

// If a value is farther than this from a tie between two bytes, `float` rounds to the same byte as
// `double`: the terms of the sum are below 512, and the error of five roundings is below 2⁻¹².
constexpr float DOUBTFUL = 0x1p-12f;
// The maximum rounding error of a tie in `double`.
constexpr double MIDDLE = 0x1p-36;

struct Pixel {
    float components[3];
};

DEVICE float channel_of(const Color &color, const Pixel &pixel, int channel)
{
    float sum = 0.0f;
    for (int at = 0; at < 3; at++)
        sum = fmaf(color.matrix_rounded[channel][at], pixel.components[at] - color.zero_rounded[at],
                   sum);
    return sum;
}

DEVICE double exact_channel_of(const Color &color, const Pixel &pixel, int channel)
{
    double sum = 0.0;
    for (int at = 0; at < 3; at++)
        sum += color.matrix[channel][at] * (pixel.components[at] - color.zero[at]);
    return sum;
}

// The nearest integer, ties up.
DEVICE float rounded(const Image &image, const Pixel &pixel, int channel, float value)
{
    float whole = floorf(value + 0.5f);
    float above = value + 0.5f - whole;
    bool is_doubtful = above < DOUBTFUL || above > 1.0f - DOUBTFUL;
    if (is_doubtful && !image.is_rgb) {
        double exact = exact_channel_of(image.color, pixel, channel);
        whole = static_cast<float>(floor(exact + 0.5 + MIDDLE));
    }
    return whole;
}

// Clamps the value to 0 to 255 and normalises it, without rounding to a byte. The product is rounded
// before the sum, as on the host.
DEVICE float normalized(const Image &image, int channel, float value)
{
    float scaled = fminf(fmaxf(value, 0.0f), 255.0f) * image.scale[channel];
    return scaled + image.offset[channel];
}

DEVICE void write_pixel(const Image &image, int column, int row, const Pixel &pixel)
{
    long long first = column * image.output_across + row * image.output_down;
#pragma unroll
    for (int channel = 0; channel < 3; channel++) {
        long long at = first + channel * image.output_channel;
        float value = image.is_rgb ? pixel.components[channel]
                                   : channel_of(image.color, pixel, channel);
        if (image.value_type == BYTES)
            reinterpret_cast<unsigned char *>(image.output)[at] =
                byte_of(rounded(image, pixel, channel, value));
        else if (image.value_type == HALVES)
            reinterpret_cast<unsigned short *>(image.output)[at] =
                half_of(normalized(image, channel, value));
        else if (image.value_type == BFLOATS)
            reinterpret_cast<unsigned short *>(image.output)[at] =
                bfloat_of(normalized(image, channel, value));
        else
            reinterpret_cast<float *>(image.output)[at] = normalized(image, channel, value);
    }
}
