// Vectors of the compiler (GCC and Clang), as wide as the registers, and what differs between instruction sets.
// Part of kernels.cpp, inside its namespaces.
#pragma once

// A comparison of vectors gives lanes of 0 or -1.
#if defined(__AVX512BW__)
constexpr int width = 64;
#elif defined(__AVX2__)
constexpr int width = 32;
#else
constexpr int width = 16;
#endif
using Doubles = double __attribute__((vector_size(width)));
using Longs = int64_t __attribute__((vector_size(width)));
using FloatVector = float __attribute__((vector_size(width)));
using HalfFloats = float __attribute__((vector_size(width / 2)));
using Ints = int32_t __attribute__((vector_size(width)));
using Words = uint32_t __attribute__((vector_size(width)));
constexpr int double_lanes = width / 8, float_lanes = width / 4;

template <class Vector, class Number>
inline Vector all(Number x) {
    return Vector{} + x;
}

template <class Vector>
inline auto total_of(Vector v) {
    auto total = v[0];
    for (unsigned i = 1; i < sizeof v / sizeof v[0]; ++i) total += v[i];
    return total;
}

// plus_square is fused where the processor can. plus_zeros adds 1 where v is 0. all_finite is of what is not negative.
#if defined(__AVX512BW__)
inline FloatVector lesser(FloatVector a, FloatVector b) { return _mm512_min_ps(a, b); }
inline FloatVector greater(FloatVector a, FloatVector b) { return _mm512_max_ps(a, b); }
inline Doubles lesser(Doubles a, Doubles b) { return _mm512_min_pd(a, b); }
inline Doubles greater(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
inline FloatVector plus_square(FloatVector sum, FloatVector v) { return _mm512_fmadd_ps(v, v, sum); }
inline Doubles plus_square(Doubles sum, Doubles v) { return _mm512_fmadd_pd(v, v, sum); }
inline Ints plus_zeros(Ints count, FloatVector v) {  // the compiler makes a vector of the mask first
    const __mmask16 zero = _mm512_cmp_ps_mask(v, FloatVector{}, _CMP_EQ_OQ);
    return (Ints)_mm512_mask_add_epi32((__m512i)count, zero, (__m512i)count, _mm512_set1_epi32(1));
}
inline Doubles as_doubles(HalfFloats v) { return _mm512_cvtps_pd(v); }
inline bool all_finite(Doubles v) { return _mm512_cmp_pd_mask(v, all<Doubles>(__builtin_inf()), _CMP_LT_OQ) == 255; }
#elif defined(__AVX2__)
inline FloatVector lesser(FloatVector a, FloatVector b) { return _mm256_min_ps(a, b); }
inline FloatVector greater(FloatVector a, FloatVector b) { return _mm256_max_ps(a, b); }
inline Doubles lesser(Doubles a, Doubles b) { return _mm256_min_pd(a, b); }
inline Doubles greater(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
inline FloatVector plus_square(FloatVector sum, FloatVector v) { return _mm256_fmadd_ps(v, v, sum); }
inline Doubles plus_square(Doubles sum, Doubles v) { return _mm256_fmadd_pd(v, v, sum); }
inline Ints plus_zeros(Ints count, FloatVector v) { return count - (v == 0.0f); }
inline Doubles as_doubles(HalfFloats v) { return _mm256_cvtps_pd(v); }
inline bool all_finite(Doubles v) {
    return _mm256_movemask_pd(_mm256_cmp_pd(v, all<Doubles>(__builtin_inf()), _CMP_LT_OQ)) == 15;
}
#else
#if defined(__SSE2__)
inline FloatVector lesser(FloatVector a, FloatVector b) { return _mm_min_ps(a, b); }
inline FloatVector greater(FloatVector a, FloatVector b) { return _mm_max_ps(a, b); }
#else
inline FloatVector lesser(FloatVector a, FloatVector b) { return a < b ? a : b; }
inline FloatVector greater(FloatVector a, FloatVector b) { return a > b ? a : b; }
#endif
inline Doubles lesser(Doubles a, Doubles b) { return a < b ? a : b; }
inline Doubles greater(Doubles a, Doubles b) { return a > b ? a : b; }
inline FloatVector plus_square(FloatVector sum, FloatVector v) { return sum + v * v; }
inline Doubles plus_square(Doubles sum, Doubles v) { return sum + v * v; }
inline Ints plus_zeros(Ints count, FloatVector v) { return count - (v == 0.0f); }
inline Doubles as_doubles(HalfFloats v) { return __builtin_convertvector(v, Doubles); }
inline bool all_finite(Doubles v) { return total_of(v) < __builtin_inf(); }
#endif

inline Doubles widened(FloatVector v) {  // the sums of pairs of lanes half a vector apart
    HalfFloats part[2];
    memcpy(part, &v, width);
    return as_doubles(part[0]) + as_doubles(part[1]);
}

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
