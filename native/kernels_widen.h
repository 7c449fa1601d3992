// Items of every kind as doubles.
// Part of kernels.cpp, inside its namespaces.
#pragma once

inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline float half(uint16_t bits) {
    const uint32_t magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
    const float finite = float_from_bits(magnitude << 13) * 0x1p112f;  // exact, subnormals included
    uint32_t found;
    memcpy(&found, &finite, 4);
    found = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u : found;
    return float_from_bits(found | sign);
}

inline float brain(uint16_t bits) { return float_from_bits(static_cast<uint32_t>(bits) << 16); }

inline void widen_halves(const char* data, int n, double* out) {
    int i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 2 * i)));
        _mm256_storeu_pd(out + i, _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
        _mm256_storeu_pd(out + i + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
    }
#endif
    for (; i < n; ++i) out[i] = half(load<uint16_t>(data + i * 2));
}

// Items of f16 or bf16 as floats.
inline const float* as_floats(Kind kind, const char* data, int n, float* out) {
    int i = 0;
    if (kind == Kind::bf16) {
        for (; i < n; ++i) out[i] = brain(load<uint16_t>(data + i * 2));
        return out;
    }
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 2 * i))));
#endif
    for (; i < n; ++i) out[i] = half(load<uint16_t>(data + i * 2));
    return out;
}

template <class T>
inline void widen(const char* data, int n, double* out) {
    for (int i = 0; i < n; ++i) out[i] = static_cast<double>(load<T>(data + i * sizeof(T)));
}

inline bool is_infinite(double x) { return __builtin_fabs(x) == __builtin_inf(); }

inline double modulus_of_narrow(double re, double im) {  // squares of floats neither overflow nor round in double
    if (is_infinite(re) || is_infinite(im)) return __builtin_inf();
    return __builtin_sqrt(re * re + im * im);
}

inline double modulus(double re, double im) {
    if (is_infinite(re) || is_infinite(im)) return __builtin_inf();
    re = __builtin_fabs(re);
    im = __builtin_fabs(im);
    const double larger = re > im ? re : im;
    if (!(larger > 0)) return re + im;  // 0, or NaN
    int exponent;
    __builtin_frexp(larger, &exponent);
    // Two steps, because 2^-exponent alone may overflow.
    const int first = exponent / 2, second = exponent - first;
    re = __builtin_ldexp(__builtin_ldexp(re, -first), -second);
    im = __builtin_ldexp(__builtin_ldexp(im, -first), -second);
    return __builtin_ldexp(__builtin_ldexp(__builtin_sqrt(re * re + im * im), first), second);
}

// Widens n items; table2 gives two values an item.
void widen(const Task& task, const char* data, int n, double* out) {
    switch (task.kind) {
        case Kind::f32: return widen<float>(data, n, out);
        case Kind::f64: return widen<double>(data, n, out);
        case Kind::i8: return widen<int8_t>(data, n, out);
        case Kind::i16: return widen<int16_t>(data, n, out);
        case Kind::i32: return widen<int32_t>(data, n, out);
        case Kind::i64: return widen<int64_t>(data, n, out);
        case Kind::u8: return widen<uint8_t>(data, n, out);
        case Kind::u16: return widen<uint16_t>(data, n, out);
        case Kind::u32: return widen<uint32_t>(data, n, out);
        case Kind::u64: return widen<uint64_t>(data, n, out);
        case Kind::f16:
            return widen_halves(data, n, out);
        case Kind::bf16:
            for (int i = 0; i < n; ++i) out[i] = brain(load<uint16_t>(data + i * 2));
            return;
        case Kind::c32:
            for (int i = 0; i < n; ++i)
                out[i] = modulus_of_narrow(half(load<uint16_t>(data + i * 4)), half(load<uint16_t>(data + i * 4 + 2)));
            return;
        case Kind::c64:
            for (int i = 0; i < n; ++i)
                out[i] = modulus_of_narrow(load<float>(data + i * 8), load<float>(data + i * 8 + 4));
            return;
        case Kind::c128:
            for (int i = 0; i < n; ++i) out[i] = modulus(load<double>(data + i * 16), load<double>(data + i * 16 + 8));
            return;
        case Kind::table:
            for (int i = 0; i < n; ++i) out[i] = task.table[static_cast<uint8_t>(data[i])];
            return;
        case Kind::table2:
            for (int i = 0; i < n; ++i) memcpy(out + 2 * i, task.table + 2 * static_cast<uint8_t>(data[i]), 16);
            return;
    }
}
