// The fast paths with AVX-512: whole stripes of finite floats.
// Part of kernels.cpp, inside its namespaces.
#pragma once

template <int n>
struct Count {
    static constexpr int value = n;
};

inline void fold(__m512i a, __m512i b, uint64_t block, Digest* digest) {
    if (!digest) return;
    alignas(64) uint32_t state[lanes];
    _mm512_store_si512(state, _mm512_add_epi32(a, b));
    fold(state, block, *digest);
}

template <class Each>
inline double over_lanes(__m512d vector, Each each) {
    alignas(64) double lane[8];
    _mm512_store_pd(lane, vector);
    double result = lane[0];
    for (int i = 1; i < 8; ++i) result = each(result, lane[i]);
    return result;
}

inline double add(double a, double b) { return a + b; }
inline double lesser(double a, double b) { return a < b ? a : b; }
inline double greater(double a, double b) { return a > b ? a : b; }

// How the vectors of one stripe are read as floats. Sums do not mind in which order.
struct Floats {
    static constexpr int per_stripe = 1;
    static void read(const char*, __m512i x, __m512* out) { out[0] = _mm512_castsi512_ps(x); }
};
struct BrainFloats {
    static constexpr int per_stripe = 2;
    static void read(const char*, __m512i x, __m512* out) {
        out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        out[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    }
};
struct Halves {
    static constexpr int per_stripe = 2;
    static void read(const char* at, __m512i, __m512* out) {
        const __m256i* from = reinterpret_cast<const __m256i*>(at);
        out[0] = _mm512_cvtph_ps(_mm256_loadu_si256(from));
        out[1] = _mm512_cvtph_ps(_mm256_loadu_si256(from + 1));
    }
};

// Widening to double costs more than all else. So up to 32 values (a tree of two sums of 8 by two halves) are added as
// floats, then widened and added as doubles: docs/metrics.md says what that costs in accuracy.
struct FloatSums {
    __m512d sum = _mm512_setzero_pd(), squares = sum;
    __m512 low = _mm512_set1_ps(__builtin_inff()), high = _mm512_set1_ps(-__builtin_inff());
    __m512i zeros = _mm512_setzero_si512();

    // `n` stripes, the first of them stripe `at` of its block.
    template <class Source, int n>
    inline __attribute__((always_inline)) void add_group(const char* data, size_t at, __m512i* state) {
        __m512 s[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, q[2] = {s[0], s[0]};
        __m512 near = _mm512_set1_ps(__builtin_inff());
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) {
            const char* from = data + (at + k) * 64;
            const __m512i bits = _mm512_loadu_si512(from);
            state[k & 1] = digest_step(state[k & 1], bits, block_keys + (at + k) * 32);
            __m512 x[Source::per_stripe];
            Source::read(from, bits, x);
            for (int i = 0; i < Source::per_stripe; ++i) {
                const int side = (k * Source::per_stripe + i) & 1;
                near = _mm512_range_ps(near, x[i], 0b1010);  // the smaller magnitude
                low = _mm512_min_ps(low, x[i]);
                high = _mm512_max_ps(high, x[i]);
                s[side] = _mm512_add_ps(s[side], x[i]);
                q[side] = _mm512_fmadd_ps(x[i], x[i], q[side]);
            }
        }
        sum = _mm512_add_pd(sum, widened(_mm512_add_ps(s[0], s[1])));
        squares = _mm512_add_pd(squares, widened(_mm512_add_ps(q[0], q[1])));
        const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
        if (_mm512_testn_epi32_mask(_mm512_castps_si512(near), magnitude)) count_zeros<Source, n>(data, at, magnitude);
    }
    template <class Source, int n>
    void count_zeros(const char* data, size_t at, __m512i magnitude) {
        for (int k = 0; k < n; ++k) {
            const char* from = data + (at + k) * 64;
            __m512 x[Source::per_stripe];
            Source::read(from, _mm512_loadu_si512(from), x);
            for (int i = 0; i < Source::per_stripe; ++i)
                zeros = _mm512_mask_add_epi32(zeros, _mm512_testn_epi32_mask(_mm512_castps_si512(x[i]), magnitude), zeros,
                                              _mm512_set1_epi32(1));
        }
    }
    static __m512d first(__m512 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
    static __m256 upper(__m512 x) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)); }
    static __m512d widened(__m512 x) { return _mm512_cvtps_pd(_mm256_add_ps(_mm512_castps512_ps256(x), upper(x))); }
    void finish(Quick& quick) const {
        quick.sum = over_lanes(sum, add);
        quick.squares = over_lanes(squares, add);
        quick.min = over_lanes(_mm512_min_pd(first(low), _mm512_cvtps_pd(upper(low))), lesser);
        quick.max = over_lanes(_mm512_max_pd(first(high), _mm512_cvtps_pd(upper(high))), greater);
        alignas(64) uint32_t counts[16];
        _mm512_store_si512(counts, zeros);
        quick.zeros = 0;
        for (uint32_t count : counts) quick.zeros += count;
    }
};

template <class Source>
void quick_floats(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    constexpr int group = 16 / Source::per_stripe;
    FloatSums sums;
    while (stripes) {
        const size_t here = stripes < block_stripes ? stripes : block_stripes;
        __m512i state[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        size_t i = 0;
        for (; i + group <= here; i += group) sums.add_group<Source, group>(data, i, state);
        for (; i < here; ++i) sums.add_group<Source, 1>(data, i, state);
        fold(state[0], state[1], block++, digest);
        data += here * 64;
        stripes -= here;
    }
    sums.finish(quick);
}

void quick_f32(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    quick_floats<Floats>(data, stripes, block, quick, digest);
}

template <bool brain_float>
void quick_16(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    if (brain_float) return quick_floats<BrainFloats>(data, stripes, block, quick, digest);
    quick_floats<Halves>(data, stripes, block, quick, digest);
}

void quick_f64(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    const __m512d zero = _mm512_setzero_pd();
    __m512d sum[2] = {zero, zero}, squares[2] = {zero, zero};
    __m512d low = _mm512_set1_pd(__builtin_inf()), high = _mm512_set1_pd(-__builtin_inf());
    __m512i zeros = _mm512_setzero_si512();
    const __m512i magnitude = _mm512_set1_epi64(INT64_MAX), one = _mm512_set1_epi64(1);
    auto group = [&](size_t at, auto count, __m512i* state) {
        constexpr int n = decltype(count)::value;
        __m512d near = _mm512_loadu_pd(data + at * 64);
        for (int k = 0; k < n; ++k) {
            const __m512i bits = _mm512_loadu_si512(data + (at + k) * 64);
            const __m512d x = _mm512_castsi512_pd(bits);
            state[k & 1] = digest_step(state[k & 1], bits, block_keys + (at + k) * 32);
            near = k ? _mm512_range_pd(near, x, 0b1010) : near;
            low = _mm512_min_pd(low, x);
            high = _mm512_max_pd(high, x);
            sum[k & 1] = _mm512_add_pd(sum[k & 1], x);
            squares[k & 1] = _mm512_fmadd_pd(x, x, squares[k & 1]);
        }
        if (_mm512_testn_epi64_mask(_mm512_castpd_si512(near), magnitude))
            for (int k = 0; k < n; ++k) {
                const __m512i bits = _mm512_loadu_si512(data + (at + k) * 64);
                zeros = _mm512_mask_add_epi64(zeros, _mm512_testn_epi64_mask(bits, magnitude), zeros, one);
            }
    };
    while (stripes) {
        const size_t here = stripes < block_stripes ? stripes : block_stripes;
        __m512i state[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        size_t i = 0;
        for (; i + 8 <= here; i += 8) group(i, Count<8>(), state);
        for (; i < here; ++i) group(i, Count<1>(), state);
        fold(state[0], state[1], block++, digest);
        data += here * 64;
        stripes -= here;
    }
    quick.sum = over_lanes(_mm512_add_pd(sum[0], sum[1]), add);
    quick.squares = over_lanes(_mm512_add_pd(squares[0], squares[1]), add);
    quick.min = over_lanes(low, lesser);
    quick.max = over_lanes(high, greater);
    alignas(64) int64_t counts[8];
    _mm512_store_si512(counts, zeros);
    quick.zeros = 0;
    for (int64_t count : counts) quick.zeros += count;
}
