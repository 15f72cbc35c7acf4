// The types of the values that are written.
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
        // A multiple of 2⁻²⁴: adding ½ leaves as many bits as it has, rounded.
        bits = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
    } else {
        // 13 bits go; the exponent counts from 15 instead of 127.
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

// The byte of a whole number.
DEVICE unsigned char byte_of(float whole)
{
    return static_cast<unsigned char>(fminf(fmaxf(whole, 0.0f), 255.0f));
}
