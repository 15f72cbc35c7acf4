// Conversion to the output types.
#pragma once

// The nearest binary16, ties to even.
DEVICE unsigned short half_of(float value)
{
    unsigned bits = bits_of(value);
    unsigned sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits >= bits_of(65520.0f)) {
        bits = 0x7c00;
    } else if (bits < bits_of(0x1p-14f)) {
        // Subnormal, a multiple of 2⁻²⁴: the sum with ½ has exactly these bits, rounded.
        bits = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
    } else {
        // Rounds off 13 bits, and changes the exponent bias from 127 to 15.
        bits += 0xfff + (bits >> 13 & 1);
        bits = (bits >> 13) - (112 << 10);
    }
    return static_cast<unsigned short>(sign | bits);
}

// The nearest bfloat16, ties to even.
DEVICE unsigned short bfloat_of(float value)
{
    unsigned bits = bits_of(value);
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Clamps an integer value to a byte.
DEVICE unsigned char byte_of(float whole)
{
    return static_cast<unsigned char>(fminf(fmaxf(whole, 0.0f), 255.0f));
}
