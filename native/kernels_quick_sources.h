// What the fast paths are made of: where values come from, the counts of what is not finite, and groups of a block.
// Part of kernels.cpp, inside its namespaces.
#pragma once

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

// In the place of DigestLanes where there is no digest to make.
struct NoDigest {
    template <class Vector>
    void add(Vector, int, int) {}
    void advance(size_t) {}
    void add_stripes(const void*, size_t) {}
};

// The loops below are as fast as a second-level cache; from further away a processor fetches too little ahead by
// itself. Vector 0 lies at `at`, and a line is fetched for each that is read.
inline void fetch_ahead(const char* at, int vector) {
    if (vector * width % 64 == 0) __builtin_prefetch(at + vector * width + 2048);
}

// Where floats come from: `take` gives `step` vectors from number k on and their bytes to the digest; `floats` the
// first n in any order, in `room` where they have to be converted.
struct Singles {
    static constexpr int step = 2;
    static constexpr size_t item = 4;
    const float* x;

    Singles operator+(size_t n) const { return {x + n}; }
    const float* floats(size_t, float*) const { return x; }
    template <class Lanes>
    inline __attribute__((always_inline)) void take(int k, FloatVector* v, Lanes& digest) const {
        const char* from = reinterpret_cast<const char*>(x + k * float_lanes);
#pragma GCC unroll 2
        for (int side = 0; side < step; ++side) {
            fetch_ahead(from, side);
            memcpy(v + side, x + (k + side) * float_lanes, width);
            digest.add(v[side], k + side, side);
        }
    }
};

#if defined(__AVX2__)
inline FloatVector converted(const char* from) {  // of float16
#if defined(__AVX512BW__)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}

template <bool brain_float>
struct Halves {
    static constexpr int step = 4;
    static constexpr size_t item = 2;
    const char* x;

    Halves operator+(size_t n) const { return {x + n * item}; }
    const float* floats(size_t n, float* room) const {
        NoDigest none;
        for (size_t i = 0; i < n; i += step * float_lanes) {
            FloatVector v[step];
            take(static_cast<int>(i) / float_lanes, v, none);
            memcpy(room + i, v, sizeof v);
        }
        return room;
    }
    // Of bfloat16 those at even places, then those at odd ones: it does not matter which lane a value is added to.
    template <class Lanes>
    inline __attribute__((always_inline)) void take(int k, FloatVector* v, Lanes& digest) const {
        const char* from = x + k * width / 2;
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
            fetch_ahead(from, side);
            Words both;
            memcpy(&both, from + side * width, width);
            digest.add(both, k / 2 + side, side);
            if (brain_float) {
                v[2 * side] = (FloatVector)(both << 16);
                v[2 * side + 1] = (FloatVector)(both & 0xffff0000);
            } else {
                v[2 * side] = converted(from + side * width);
                v[2 * side + 1] = converted(from + side * width + width / 2);
            }
        }
    }
};
#endif

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

// All of a block that is whole groups; the digest of the rest, too.
template <class Sums, class Source, class Lanes>
void add_block(Sums& sums, Source x, size_t n, Lanes& digest) {
    const size_t whole = add_groups(sums, x, n, digest);
    digest.add_stripes((x + whole).x, (n - whole) * x.item / stripe_bytes);
}
