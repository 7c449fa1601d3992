// The fast paths with vectors of the compiler: AVX2, or what every processor of the architecture has.
// Part of kernels.cpp, inside its namespaces.
#pragma once

using FloatVector = float __attribute__((vector_size(width)));
using Ints = int32_t __attribute__((vector_size(width)));
using HalfFloats = float __attribute__((vector_size(width / 2)));
constexpr int float_lanes = width / 4;

inline FloatVector lesser(FloatVector a, FloatVector b) {
#if defined(__AVX2__)
    return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
    return _mm_min_ps(a, b);
#else
    return a < b ? a : b;
#endif
}

inline FloatVector greater(FloatVector a, FloatVector b) {
#if defined(__AVX2__)
    return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
    return _mm_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}

inline Doubles widened(FloatVector v) {  // the sums of pairs of lanes half a vector apart
    HalfFloats part[2];
    memcpy(part, &v, width);
#if defined(__AVX2__)
    return _mm256_cvtps_pd(part[0]) + _mm256_cvtps_pd(part[1]);
#else
    return __builtin_convertvector(part[0], Doubles) + __builtin_convertvector(part[1], Doubles);
#endif
}

// Much as in the version for AVX-512: 8 values are added as floats before they are widened.
void quick_float_block(const float* x, size_t n, Quick& quick) {
    Doubles sum{}, squares{};
    FloatVector low = all<FloatVector>(__builtin_inff()), high = -low;
    Ints zeros{};
    constexpr size_t group = 8 * float_lanes;
    size_t i = 0;
    for (; i + group <= n; i += group) {
        FloatVector s[2] = {}, q[2] = {};
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) {
            Ints bits;
            FloatVector v;
            memcpy(&v, x + i + k * float_lanes, width);
            memcpy(&bits, x + i + k * float_lanes, width);
            zeros -= (bits & 0x7fffffff) == 0;
            low = lesser(low, v);
            high = greater(high, v);
            s[k & 1] += v;
            q[k & 1] += v * v;
        }
        sum += widened(s[0] + s[1]);
        squares += widened(q[0] + q[1]);
    }
    quick.sum += total_of(sum);
    quick.squares += total_of(squares);
    quick.zeros += total_of(zeros);
    auto one = [&](float v) {
        quick.min = v < quick.min ? static_cast<double>(v) : quick.min;
        quick.max = v > quick.max ? static_cast<double>(v) : quick.max;
    };
    for (int k = 0; k < float_lanes; ++k) {
        quick.min = low[k] < quick.min ? static_cast<double>(low[k]) : quick.min;
        quick.max = high[k] > quick.max ? static_cast<double>(high[k]) : quick.max;
    }
    for (; i < n; ++i) {
        const float value = load<float>(reinterpret_cast<const char*>(x + i));
        one(value);
        const double v = static_cast<double>(value);
        quick.sum += v;
        quick.squares += v * v;
        quick.zeros += load<int32_t>(reinterpret_cast<const char*>(x + i)) << 1 == 0;
    }
}

void quick_double_block(const double* x, size_t n, Quick& quick) {
    Doubles sum[2] = {}, squares[2] = {}, low = all<Doubles>(__builtin_inf()), high = -low;
    Longs zeros{};
    constexpr size_t group = 2 * double_lanes;
    size_t i = 0;
    for (; i + group <= n; i += group)
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) {
            Doubles v;
            Longs bits;
            memcpy(&v, x + i + k * double_lanes, width);
            memcpy(&bits, x + i + k * double_lanes, width);
            zeros -= (bits & INT64_MAX) == 0;
            low = v < low ? v : low;
            high = v > high ? v : high;
            sum[k] += v;
            squares[k] += v * v;
        }
    quick.sum += total_of(sum[0] + sum[1]);
    quick.squares += total_of(squares[0] + squares[1]);
    quick.zeros += total_of(zeros);
    auto one = [&](double v) {
        quick.min = v < quick.min ? v : quick.min;
        quick.max = v > quick.max ? v : quick.max;
    };
    for (int k = 0; k < double_lanes; ++k) {
        quick.min = low[k] < quick.min ? low[k] : quick.min;
        quick.max = high[k] > quick.max ? high[k] : quick.max;
    }
    for (; i < n; ++i) {  // whole stripes are whole groups; this is for vectors of other widths
        const double v = load<double>(reinterpret_cast<const char*>(x + i));
        one(v);
        quick.sum += v;
        quick.squares += v * v;
        quick.zeros += load<int64_t>(reinterpret_cast<const char*>(x + i)) << 1 == 0;
    }
}

// Block by block, so that the second look at the data finds them in the first-level cache.
template <class Each>
void quick_blocks(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest, Each each) {
    quick = {__builtin_inf(), -__builtin_inf(), 0, 0, 0};
    while (stripes) {
        const size_t here = stripes < block_stripes ? stripes : block_stripes;
        if (digest) {
            uint32_t state[lanes];
            digest_stripes(data, here, state);
            fold(state, block++, *digest);
        }
        each(data, here * stripe_bytes);
        data += here * stripe_bytes;
        stripes -= here;
    }
}

void quick_f32(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    quick_blocks(data, stripes, block, quick, digest, [&](const char* from, size_t bytes) {
        quick_float_block(reinterpret_cast<const float*>(from), bytes / 4, quick);
    });
}

void quick_f64(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    quick_blocks(data, stripes, block, quick, digest, [&](const char* from, size_t bytes) {
        quick_double_block(reinterpret_cast<const double*>(from), bytes / 8, quick);
    });
}

template <bool brain_float>
void quick_16(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    alignas(64) float values[block_bytes / 2];
    quick_blocks(data, stripes, block, quick, digest, [&](const char* from, size_t bytes) {
        const int n = static_cast<int>(bytes / 2);
        if (brain_float) {
            for (int i = 0; i < n; ++i) values[i] = brain(load<uint16_t>(from + 2 * i));
        } else {
#if defined(__F16C__)
            for (int i = 0; i < n; i += 8)
                _mm256_store_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
#else
            for (int i = 0; i < n; ++i) values[i] = half(load<uint16_t>(from + 2 * i));
#endif
        }
        quick_float_block(values, static_cast<size_t>(n), quick);
    });
}
