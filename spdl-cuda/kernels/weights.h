// The window and the filter weights of a target position, as in Pillow, and in PyTorch with
// `antialias=True`.
#pragma once

// The source samples of one target position, from `first` to before `end`.
struct Window {
    int first;
    int end;
    // The distance of the first sample from the centre, and between samples, in units of the filter.
    float distance;
    float step;
    // The reciprocal of the sum of the weights.
    float per_sum;
};

// The filter at this distance from its centre.
DEVICE float filter_weight(int filter, float distance)
{
    float x = fabsf(distance);
    if (filter != BICUBIC)
        return fmaxf(1.0f - x, 0.0f);
    // Keys' cubic convolution with a = −½.
    if (x < 1.0f)
        return fmaf(fmaf(1.5f, x, -2.5f) * x, x, 1.0f);
    if (x < 2.0f)
        return fmaf(fmaf(fmaf(-0.5f, x, 2.5f), x, -4.0f), x, 2.0f);
    return 0.0f;
}

// The weight of a sample of the window.
DEVICE float weight_at(const Window &window, int filter, int position)
{
    float away = static_cast<float>(position - window.first);
    return filter_weight(filter, fmaf(away, window.step, window.distance)) * window.per_sum;
}

// Distances are relative to the first sample of the window, so `float` suffices for images of any size.
DEVICE Window window_of(const Axis &axis, int filter, int position)
{
    double stretch = fmax(axis.scale, 1.0);
    double support = filter == BICUBIC ? 2.0 * stretch : stretch;
    double middle = axis.start + (position + 0.5) * axis.scale;
    double first = fmin(fmax(floor(middle - support + 0.5), axis.first), axis.end - 1.0);
    double end = fmin(fmax(floor(middle + support + 0.5), first + 1.0), axis.end);
    Window window;
    window.first = static_cast<int>(first);
    window.end = static_cast<int>(end);
    window.distance = static_cast<float>((first + 0.5 - middle) / stretch);
    window.step = static_cast<float>(1.0 / stretch);
    window.per_sum = 1.0f;
    // Drops samples without weight at the end, which would cost as much as the others.
#pragma unroll 1
    while (window.end > window.first + 1 && weight_at(window, filter, window.end - 1) == 0.0f)
        window.end--;
    float sum = 0.0f;
#pragma unroll 1
    for (int at = window.first; at < window.end; at++)
        sum += weight_at(window, filter, at);
    if (sum > 0.0f) {
        window.per_sum = 1.0f / sum;
    } else {
        // No sample is in the support of the filter: uses the nearest one.
        window.end = window.first + 1;
        window.distance = 0.0f;
    }
    return window;
}
