// Vectors of the compiler for the fast paths, AVX2 or what every processor of the architecture has; and what they are
// loaded from.
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

inline FloatVector plus_square(FloatVector sum, FloatVector v) {
#if defined(__FMA__)
    return _mm256_fmadd_ps(v, v, sum);
#else
    return sum + v * v;
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

// What is not finite, by kind; `Mask` is a vector of integers as wide as the elements.
template <class Mask>
struct Lost {
    Mask nan{}, positive{}, negative{};

    Mask add(Mask bits, Mask infinity) {  // returns the mask of what is finite
        const Mask magnitude = bits & ~(all<Mask>(1) << (sizeof bits[0] * 8 - 1));
        nan -= magnitude > infinity;
        positive -= bits == infinity;
        negative -= (magnitude == infinity) & (bits < 0);
        return magnitude < infinity;
    }
    void finish(Quick& quick) const {
        quick.nan += total_of(nan);
        quick.positive_inf += total_of(positive);
        quick.negative_inf += total_of(negative);
    }
};

template <class Vector>
inline Vector select(Vector a, Vector b, Vector chosen) {  // chosen is a mask of integers
    return (a & chosen) | (b & ~chosen);
}

inline bool any(Ints v) {
    int64_t part[width / 8], found = 0;
    memcpy(part, &v, width);
    for (int64_t p : part) found |= p;
    return found != 0;
}

inline bool all_finite(Doubles v) {  // none is negative
#if defined(__AVX2__)
    return _mm256_movemask_pd(_mm256_cmp_pd(v, all<Doubles>(__builtin_inf()), _CMP_LT_OQ)) == 15;
#else
    return total_of(v) < __builtin_inf();
#endif
}

// In the place of DigestLanes where there is no digest to make.
struct NoDigest {
    template <class Vector>
    void add(Vector, int, int) {}
    void advance(size_t) {}
    void add_stripes(const void*, size_t) {}
};

// The loops below are as fast as a second-level cache; from further away a processor fetches too little ahead by itself.
inline void fetch_ahead(const void* at) { __builtin_prefetch(static_cast<const char*>(at) + 2048); }

// Where floats come from: `take` gives `step` vectors from number k on and their bytes to the digest; `floats` the first n,
// in `room` where they have to be converted.
struct Singles {
    static constexpr int step = 2;
    static constexpr size_t item = 4;
    const float* x;

    Singles operator+(size_t n) const { return {x + n}; }
    const float* floats(size_t, float*) const { return x; }
    template <class Lanes>
    inline __attribute__((always_inline)) void take(int k, FloatVector* v, Lanes& digest) const {
        fetch_ahead(x + k * float_lanes);
#pragma GCC unroll 2
        for (int side = 0; side < step; ++side) {
            memcpy(v + side, x + (k + side) * float_lanes, width);
            digest.add(v[side], k + side, side);
        }
    }
};

#if defined(__AVX2__)
template <bool brain_float>
struct Halves {
    static constexpr int step = 4;
    static constexpr size_t item = 2;
    const char* x;

    Halves operator+(size_t n) const { return {x + n * item}; }
    const float* floats(size_t n, float* room) const {  // n of whole stripes
        for (size_t i = 0; i < n; i += 8) {
            const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i * item));
            if (brain_float)
                _mm256_storeu_ps(room + i, (FloatVector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
            else
                _mm256_storeu_ps(room + i, _mm256_cvtph_ps(bits));
        }
        return room;
    }
    // Of bfloat16 those at even places, then those at odd ones: it does not matter which lane a value is added to.
    template <class Lanes>
    inline __attribute__((always_inline)) void take(int k, FloatVector* v, Lanes& digest) const {
        const char* from = x + k * width / 2;
        fetch_ahead(from);
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
            const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + side * width));
            digest.add(both, k / 2 + side, side);
            if (brain_float) {
                v[2 * side] = (FloatVector)_mm256_slli_epi32(both, 16);
                v[2 * side + 1] = (FloatVector)_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
            } else {
                v[2 * side] = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
                v[2 * side + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
            }
        }
    }
};
#endif

inline Doubles lesser(Doubles a, Doubles b) {
#if defined(__AVX2__)
    return _mm256_min_pd(a, b);
#else
    return a < b ? a : b;
#endif
}

inline Doubles greater(Doubles a, Doubles b) {
#if defined(__AVX2__)
    return _mm256_max_pd(a, b);
#else
    return a > b ? a : b;
#endif
}

struct DoubleItems {
    static constexpr size_t item = 8;
    const double* x;
    DoubleItems operator+(size_t n) const { return {x + n}; }
};

// The groups of a block from value `i` on, after one that is not finite, if any came before. Returns where they end.
template <class Sums, class Source, class Lanes>
__attribute__((noinline)) size_t add_unclean(Sums& sums, Source x, size_t i, size_t n, Lanes& digest) {
    NoDigest none;
    if (i) sums.add_unclean(x + (i - sums.group), none);
    for (; i + sums.group <= n; i += sums.group) {
        if (sums.masked)
            sums.add_unclean(x + i, digest);
        else if (!sums.totals.add_clean(x + i, digest))
            sums.add_unclean(x + i, none);
    }
    return i;
}

// The whole groups of a block. Returns where they end.
template <class Sums, class Source, class Lanes>
inline size_t add_groups(Sums& sums, Source x, size_t n, Lanes& digest) {
    typename Sums::Totals totals = sums.totals;  // copies, which no other function sees: they stay in registers
    Lanes keyed = digest;
    bool clean = !sums.masked;
    size_t i = 0;
    for (; clean && i + sums.group <= n; i += sums.group) clean = totals.add_clean(x + i, keyed);
    sums.totals = totals;
    digest = keyed;
    return clean ? i : add_unclean(sums, x, i, n, digest);
}
