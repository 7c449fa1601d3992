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

inline bool is_finite(double x) { return __builtin_fabs(x) < __builtin_inf(); }

// Much as in the version for AVX-512: in each lane of two accumulators 16 values are added as floats before they are
// widened. Two, because one would wait for itself. A group whose squares are not finite is read again with a mask, as is
// the group after such a one.
struct FloatSums {
    static constexpr int vectors = 32;
    static constexpr size_t group = vectors * float_lanes;

    Doubles sum{}, squares{};
    FloatVector low[2], high[2];
    Ints zeros{};
    Lost<Ints> lost;
    bool masked = false;

    FloatSums() {
        low[0] = low[1] = all<FloatVector>(__builtin_inff());
        high[0] = high[1] = -low[0];
    }

    // Returns whether all squares are finite; if not, nothing was added.
    inline __attribute__((always_inline)) bool add_clean(const float* x) {
        FloatVector s[2] = {}, q[2] = {}, least[2] = {low[0], low[1]}, most[2] = {high[0], high[1]};
        Ints none[2] = {};
#pragma GCC unroll 1  // unrolled, it would be made a tree of sums that needs more registers than there are
        for (int k = 0; k < vectors; k += 2)
#pragma GCC unroll 2
            for (int side = 0; side < 2; ++side) {
                FloatVector v;
                memcpy(&v, x + (k + side) * float_lanes, width);
                none[side] -= v == 0.0f;
                least[side] = lesser(least[side], v);
                most[side] = greater(most[side], v);
                s[side] += v;
                q[side] = plus_square(q[side], v);
            }
        const Doubles more = widened(q[0]) + widened(q[1]);
        if (!is_finite(total_of(more))) return false;
        add(s, more);
        zeros += none[0] + none[1];
        for (int side = 0; side < 2; ++side) low[side] = least[side], high[side] = most[side];
        masked = false;
        return true;
    }

    // In two rounds: for one there are not registers enough.
    __attribute__((noinline)) void add_masked(const float* x) {
        masked = count(x);
        FloatVector s[2] = {}, q[2] = {}, least = low[0], most = high[0];
#pragma GCC unroll 1
        for (int k = 0; k < vectors; k += 2)
#pragma GCC unroll 2
            for (int side = 0; side < 2; ++side) {
                Ints bits;
                memcpy(&bits, x + (k + side) * float_lanes, width);
                const Ints bad = (bits & 0x7fffffff) > 0x7f7fffff, kept = bits & ~bad;
                const Ints up = kept | (bad & 0x7f800000), down = up | (bad & INT32_MIN);
                FloatVector v, below, above;
                memcpy(&v, &kept, width);
                memcpy(&below, &up, width);
                memcpy(&above, &down, width);
                least = lesser(least, below);
                most = greater(most, above);
                s[side] += v;
                q[side] = plus_square(q[side], v);
            }
        add(s, widened(q[0]) + widened(q[1]));
        low[0] = least;
        high[0] = most;
    }

    // Zeros, and what is not finite, by kind. Returns whether there was any of these.
    inline __attribute__((always_inline)) bool count(const float* x) {
        Ints none{}, outside{}, positive{}, negative{};
#pragma GCC unroll 1
        for (int k = 0; k < vectors; ++k) {
            Ints bits;
            memcpy(&bits, x + k * float_lanes, width);
            const Ints magnitude = bits & 0x7fffffff;
            none -= magnitude == 0;
            outside -= magnitude > 0x7f7fffff;
            positive -= bits == 0x7f800000;
            negative -= bits == static_cast<int32_t>(0xff800000);
        }
        zeros += none;
        lost.nan += outside - positive - negative;
        lost.positive += positive;
        lost.negative += negative;
        return any(outside);
    }

    inline __attribute__((always_inline)) void add(const FloatVector* s, Doubles more) {
        sum += widened(s[0]) + widened(s[1]);
        squares += more;
    }
};

void quick_float_block(const float* x, size_t n, Quick& quick) {
    FloatSums sums;
    size_t i = 0;
    for (; i + sums.group <= n; i += sums.group)
        if (sums.masked || !sums.add_clean(x + i)) sums.add_masked(x + i);
    quick.sum += total_of(sums.sum);
    quick.squares += total_of(sums.squares);
    quick.zeros += total_of(sums.zeros);
    sums.lost.finish(quick);
    auto one = [&](float v) {
        quick.min = v < quick.min ? static_cast<double>(v) : quick.min;
        quick.max = v > quick.max ? static_cast<double>(v) : quick.max;
    };
    const FloatVector low = lesser(sums.low[0], sums.low[1]), high = greater(sums.high[0], sums.high[1]);
    for (int k = 0; k < float_lanes; ++k) {
        quick.min = low[k] < quick.min ? static_cast<double>(low[k]) : quick.min;
        quick.max = high[k] > quick.max ? static_cast<double>(high[k]) : quick.max;
    }
    for (; i < n; ++i) {
        const float value = load<float>(reinterpret_cast<const char*>(x + i));
        const int32_t bits = load<int32_t>(reinterpret_cast<const char*>(x + i)), magnitude = bits & 0x7fffffff;
        if (magnitude >= 0x7f800000) {
            ++(magnitude > 0x7f800000 ? quick.nan : bits > 0 ? quick.positive_inf : quick.negative_inf);
            continue;
        }
        one(value);
        const double v = static_cast<double>(value);
        quick.sum += v;
        quick.squares += v * v;
        quick.zeros += magnitude == 0;
    }
}

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

struct DoubleSums {
    static constexpr int vectors = 32;
    static constexpr size_t group = vectors * double_lanes;

    Doubles sum[2] = {}, squares[2] = {}, low[2], high[2];
    Longs zeros{};
    Lost<Longs> lost;

    DoubleSums() {
        low[0] = low[1] = all<Doubles>(__builtin_inf());
        high[0] = high[1] = -low[0];
    }

    inline __attribute__((always_inline)) bool add_clean(const double* x) {
        Doubles s[2] = {sum[0], sum[1]}, q[2] = {squares[0], squares[1]};
        Doubles least[2] = {low[0], low[1]}, most[2] = {high[0], high[1]};
        Longs none[2] = {};
#pragma GCC unroll 1
        for (int k = 0; k < vectors; k += 2)
#pragma GCC unroll 2
            for (int side = 0; side < 2; ++side) {
                Doubles v;
                memcpy(&v, x + (k + side) * double_lanes, width);
                none[side] -= v == 0.0;
                least[side] = lesser(least[side], v);
                most[side] = greater(most[side], v);
                s[side] += v;
                q[side] += v * v;
            }
        if (!is_finite(total_of(q[0] + q[1]))) return false;
        for (int side = 0; side < 2; ++side) {
            sum[side] = s[side], squares[side] = q[side];
            low[side] = least[side], high[side] = most[side];
            zeros += none[side];
        }
        return true;
    }

    __attribute__((noinline)) void add_masked(const double* x) {
#pragma GCC unroll 1
        for (int k = 0; k < vectors; ++k) {
            Longs bits;
            memcpy(&bits, x + k * double_lanes, width);
            const Longs finite = lost.add(bits, all<Longs>(0x7ff0000000000000)), kept = bits & finite;
            zeros -= (bits & INT64_MAX) == 0;
            const Longs up = select(bits, all<Longs>(0x7ff0000000000000), finite), down = up | (~finite & INT64_MIN);
            Doubles v, below, above;
            memcpy(&v, &kept, width);
            memcpy(&below, &up, width);
            memcpy(&above, &down, width);
            low[0] = lesser(low[0], below);
            high[0] = greater(high[0], above);
            sum[k & 1] += v;
            squares[k & 1] += v * v;
        }
    }
};

void quick_double_block(const double* x, size_t n, Quick& quick) {
    DoubleSums sums;
    constexpr int64_t infinity = 0x7ff0000000000000;
    size_t i = 0;
    for (; i + sums.group <= n; i += sums.group)
        if (!sums.add_clean(x + i)) sums.add_masked(x + i);
    quick.sum += total_of(sums.sum[0] + sums.sum[1]);
    quick.squares += total_of(sums.squares[0] + sums.squares[1]);
    const Doubles low = lesser(sums.low[0], sums.low[1]), high = greater(sums.high[0], sums.high[1]);
    quick.zeros += total_of(sums.zeros);
    sums.lost.finish(quick);
    auto one = [&](double v) {
        quick.min = v < quick.min ? v : quick.min;
        quick.max = v > quick.max ? v : quick.max;
    };
    for (int k = 0; k < double_lanes; ++k) {
        quick.min = low[k] < quick.min ? low[k] : quick.min;
        quick.max = high[k] > quick.max ? high[k] : quick.max;
    }
    for (; i < n; ++i) {
        const double v = load<double>(reinterpret_cast<const char*>(x + i));
        const int64_t bits = load<int64_t>(reinterpret_cast<const char*>(x + i)), magnitude = bits & INT64_MAX;
        if (magnitude >= infinity) {
            ++(magnitude > infinity ? quick.nan : bits > 0 ? quick.positive_inf : quick.negative_inf);
            continue;
        }
        one(v);
        quick.sum += v;
        quick.squares += v * v;
        quick.zeros += magnitude == 0;
    }
}

// Block by block, so that the second look at the data finds them in the first-level cache.
template <class Each>
void quick_blocks(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest, Each each) {
    quick = {__builtin_inf(), -__builtin_inf(), 0, 0, 0, 0, 0, 0};
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
