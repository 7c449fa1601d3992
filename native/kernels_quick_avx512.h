// The fast paths with AVX-512: whole stripes of floats.
// Part of kernels.cpp, inside its namespaces.
#pragma once

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

constexpr int not_finite = 0x99;  // of vfpclass: quiet and signalling NaN, both infinities

// How many elements of a vector are of which kind that is not finite.
struct Lost {
    int64_t nan = 0, positive = 0, negative = 0;

    static int64_t bits(unsigned mask) { return __builtin_popcount(mask); }
    void add(unsigned all, unsigned plus, unsigned minus) {
        positive += bits(plus);
        negative += bits(minus);
        nan += bits(all) - bits(plus) - bits(minus);
    }
    void finish(Quick& quick) const {
        quick.nan = nan;
        quick.positive_inf = positive;
        quick.negative_inf = negative;
    }
};

// Widening to double costs more than all else. So up to 64 values (a tree of four sums of 8 by two halves) are added as
// floats, then widened and added as doubles: docs/metrics.md says what that costs in accuracy. A group that holds NaN
// or Inf shows it in its squares; it is read again with those masked, and while groups are so the first reading is saved.
struct FloatSums {
    __m512d sum = _mm512_setzero_pd(), squares = sum;
    __m512 low = _mm512_set1_ps(__builtin_inff()), high = _mm512_set1_ps(-__builtin_inff());
    __m512i zeros = _mm512_setzero_si512();
    Lost lost;
    bool masked = false, counting = false;

    struct Group {
        __m512 s[4], q[4], near[2], low[2], high[2];
        Group() {
            for (int i = 0; i < 4; ++i) s[i] = q[i] = _mm512_setzero_ps();
            for (int i = 0; i < 2; ++i) near[i] = low[i] = _mm512_set1_ps(__builtin_inff());
            for (int i = 0; i < 2; ++i) high[i] = _mm512_set1_ps(-__builtin_inff());
        }
    };

    // `n` stripes, the first of them stripe `at` of its block.
    template <class Source, int n>
    inline __attribute__((always_inline)) void add_group(const char* data, size_t at, __m512i* state) {
        if (__builtin_expect(masked, 0)) {
            masked = add_masked<Source, n, true>(data, at, state);
        } else if (counting) {
            add_clean<Source, n, true>(data, at, state);
        } else {
            add_clean<Source, n, false>(data, at, state);
        }
    }

    // Zeros are counted where the smallest magnitude of a group is 0, and in the next group on the way.
    template <class Source, int n, bool count>
    inline __attribute__((always_inline)) void add_clean(const char* data, size_t at, __m512i* state) {
        Group group;
        const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), one = _mm512_set1_epi32(1);
        __m512i none = _mm512_setzero_si512();
        constexpr int unrolled = n < 8 ? n : 8;
        for (int outer = 0; outer < n; outer += unrolled)
#pragma GCC unroll 8
            for (int inner = 0; inner < unrolled; ++inner) {
                const int k = outer + inner;
                const char* from = data + (at + k) * 64;
                const __m512i bits = _mm512_loadu_si512(from);
                state[inner & 1] = digest_step(state[inner & 1], bits, block_keys + (at + k) * 32);
                __m512 x[Source::per_stripe];
                Source::read(from, bits, x);
                for (int i = 0; i < Source::per_stripe; ++i) {
                    const int part = inner * Source::per_stripe + i, side = part & 1;
                    if (count) {
                        const __mmask16 zero = _mm512_testn_epi32_mask(_mm512_castps_si512(x[i]), magnitude);
                        none = _mm512_mask_add_epi32(none, zero, none, one);
                    } else {
                        group.near[side] = _mm512_range_ps(group.near[side], x[i], 0b1010);  // the smaller magnitude
                    }
                    group.low[side] = _mm512_min_ps(group.low[side], x[i]);
                    group.high[side] = _mm512_max_ps(group.high[side], x[i]);
                    group.s[part & 3] = _mm512_add_ps(group.s[part & 3], x[i]);
                    group.q[part & 3] = _mm512_fmadd_ps(x[i], x[i], group.q[part & 3]);
                }
            }
        if (__builtin_expect(!commit<Source, n, !count>(group, data, at), 0)) {
            masked = add_masked<Source, n, false>(data, at, state);
        } else if (count) {
            zeros = _mm512_add_epi32(zeros, none);
            counting = _mm512_test_epi32_mask(none, none) != 0;
        }
    }

    template <class Source, int n, bool look_for_zeros>
    inline __attribute__((always_inline)) bool commit(const Group& group, const char* data, size_t at) {
        const __m512d more = widened(four(group.q));
        if (_mm512_fpclass_pd_mask(more, not_finite)) return false;
        squares = _mm512_add_pd(squares, more);
        sum = _mm512_add_pd(sum, widened(four(group.s)));
        low = _mm512_min_ps(low, _mm512_min_ps(group.low[0], group.low[1]));
        high = _mm512_max_ps(high, _mm512_max_ps(group.high[0], group.high[1]));
        if (!look_for_zeros) return true;
        const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
        const __m512i near = _mm512_castps_si512(_mm512_range_ps(group.near[0], group.near[1], 0b1010));
        counting = _mm512_testn_epi32_mask(near, magnitude) != 0;
        if (counting) count_zeros<Source, n>(data, at, magnitude);
        return true;
    }

    // The same without what is not finite; whether there was any. Squares that overflow are left to the caller.
    template <class Source, int n, bool with_digest>
    __attribute__((noinline)) bool add_masked(const char* data, size_t at, __m512i* state) {
        Group group;
        const Lost before = lost;
        for (int k = 0; k < n; ++k) {
            const char* from = data + (at + k) * 64;
            const __m512i bits = _mm512_loadu_si512(from);
            if (with_digest) state[0] = digest_step(state[0], bits, block_keys + (at + k) * 32);
            __m512 x[Source::per_stripe];
            Source::read(from, bits, x);
            for (int i = 0; i < Source::per_stripe; ++i) {
                const __mmask16 bad = _mm512_fpclass_ps_mask(x[i], not_finite), good = _knot_mask16(bad);
                const int side = i & 1;
                lost.add(bad, _mm512_fpclass_ps_mask(x[i], 0x08), _mm512_fpclass_ps_mask(x[i], 0x10));
                group.near[side] = _mm512_mask_range_ps(group.near[side], good, group.near[side], x[i], 0b1010);
                group.low[side] = _mm512_mask_min_ps(group.low[side], good, group.low[side], x[i]);
                group.high[side] = _mm512_mask_max_ps(group.high[side], good, group.high[side], x[i]);
                group.s[side] = _mm512_mask_add_ps(group.s[side], good, group.s[side], x[i]);
                group.q[side] = _mm512_mask3_fmadd_ps(x[i], x[i], group.q[side], good);
            }
        }
        const bool found = lost.nan + lost.positive + lost.negative > before.nan + before.positive + before.negative;
        if (!commit<Source, n, true>(group, data, at)) squares = _mm512_set1_pd(__builtin_inf());
        return found;
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
    static __m512 four(const __m512* v) {
        return _mm512_add_ps(_mm512_add_ps(v[0], v[2]), _mm512_add_ps(v[1], v[3]));
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
        lost.finish(quick);
    }
};

template <class Source>
void quick_floats(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    constexpr int group = 32 / Source::per_stripe;
    FloatSums sums;
    while (stripes) {
        const size_t here = stripes < block_stripes ? stripes : block_stripes;
        __m512i state[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        size_t i = 0;
        for (; i + group <= here; i += group) sums.add_group<Source, group>(data, i, state);
        for (; i + 4 <= here; i += 4) sums.add_group<Source, 4>(data, i, state);
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

struct DoubleSums {
    __m512d sum[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()}, squares[2] = {sum[0], sum[0]};
    __m512d low[2] = {_mm512_set1_pd(__builtin_inf()), _mm512_set1_pd(__builtin_inf())};
    __m512d high[2] = {_mm512_set1_pd(-__builtin_inf()), _mm512_set1_pd(-__builtin_inf())};
    __m512i zeros = _mm512_setzero_si512();
    Lost lost;
    bool masked = false;

    template <int n>
    inline __attribute__((always_inline)) void add_group(const char* data, size_t at, __m512i* state) {
        if (__builtin_expect(masked, 0)) {
            masked = add_masked<n, true>(data, at, state);
            return;
        }
        __m512d s[2] = {sum[0], sum[1]}, q[2] = {squares[0], squares[1]}, least[2] = {low[0], low[1]};
        __m512d most[2] = {high[0], high[1]}, near[2] = {_mm512_set1_pd(__builtin_inf()), _mm512_set1_pd(__builtin_inf())};
#pragma GCC unroll 8
        for (int k = 0; k < n; ++k) {
            const __m512i bits = _mm512_loadu_si512(data + (at + k) * 64);
            const __m512d x = _mm512_castsi512_pd(bits);
            const int side = k & 1;
            state[side] = digest_step(state[side], bits, block_keys + (at + k) * 32);
            near[side] = _mm512_range_pd(near[side], x, 0b1010);
            least[side] = _mm512_min_pd(least[side], x);
            most[side] = _mm512_max_pd(most[side], x);
            s[side] = _mm512_add_pd(s[side], x);
            q[side] = _mm512_fmadd_pd(x, x, q[side]);
        }
        if (__builtin_expect(_mm512_fpclass_pd_mask(_mm512_add_pd(q[0], q[1]), not_finite), 0)) {
            masked = add_masked<n, false>(data, at, state);
            return;
        }
        for (int i = 0; i < 2; ++i) sum[i] = s[i], squares[i] = q[i], low[i] = least[i], high[i] = most[i];
        const __m512d nearest = _mm512_range_pd(near[0], near[1], 0b1010);
        const __m512i magnitude = _mm512_set1_epi64(INT64_MAX), one = _mm512_set1_epi64(1);
        if (_mm512_testn_epi64_mask(_mm512_castpd_si512(nearest), magnitude))
            for (int k = 0; k < n; ++k) {
                const __m512i bits = _mm512_loadu_si512(data + (at + k) * 64);
                zeros = _mm512_mask_add_epi64(zeros, _mm512_testn_epi64_mask(bits, magnitude), zeros, one);
            }
    }

    template <int n, bool with_digest>
    __attribute__((noinline)) bool add_masked(const char* data, size_t at, __m512i* state) {
        const Lost before = lost;
        const __m512i magnitude = _mm512_set1_epi64(INT64_MAX), one = _mm512_set1_epi64(1);
        for (int k = 0; k < n; ++k) {
            const __m512i bits = _mm512_loadu_si512(data + (at + k) * 64);
            const __m512d x = _mm512_castsi512_pd(bits);
            const int side = k & 1;
            if (with_digest) state[side] = digest_step(state[side], bits, block_keys + (at + k) * 32);
            const __mmask8 bad = _mm512_fpclass_pd_mask(x, not_finite), good = _knot_mask8(bad);
            lost.add(bad, _mm512_fpclass_pd_mask(x, 0x08), _mm512_fpclass_pd_mask(x, 0x10));
            zeros = _mm512_mask_add_epi64(zeros, _mm512_testn_epi64_mask(bits, magnitude), zeros, one);
            low[side] = _mm512_mask_min_pd(low[side], good, low[side], x);
            high[side] = _mm512_mask_max_pd(high[side], good, high[side], x);
            sum[side] = _mm512_mask_add_pd(sum[side], good, sum[side], x);
            squares[side] = _mm512_mask3_fmadd_pd(x, x, squares[side], good);
        }
        return lost.nan + lost.positive + lost.negative > before.nan + before.positive + before.negative;
    }
};

void quick_f64(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    DoubleSums sums;
    while (stripes) {
        const size_t here = stripes < block_stripes ? stripes : block_stripes;
        __m512i state[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        size_t i = 0;
        for (; i + 8 <= here; i += 8) sums.add_group<8>(data, i, state);
        for (; i < here; ++i) sums.add_group<1>(data, i, state);
        fold(state[0], state[1], block++, digest);
        data += here * 64;
        stripes -= here;
    }
    quick.sum = over_lanes(_mm512_add_pd(sums.sum[0], sums.sum[1]), add);
    quick.squares = over_lanes(_mm512_add_pd(sums.squares[0], sums.squares[1]), add);
    quick.min = over_lanes(_mm512_min_pd(sums.low[0], sums.low[1]), lesser);
    quick.max = over_lanes(_mm512_max_pd(sums.high[0], sums.high[1]), greater);
    alignas(64) int64_t counts[8];
    _mm512_store_si512(counts, sums.zeros);
    quick.zeros = 0;
    for (int64_t count : counts) quick.zeros += count;
    sums.lost.finish(quick);
}
