// Sums of float64.
// Part of kernels.cpp, inside its namespaces.
#pragma once

struct DoubleTotals {
    static constexpr int vectors = 32;
    static constexpr size_t group = vectors * double_lanes;

    Doubles sum[2] = {}, squares[2] = {};
    Doubles low = all<Doubles>(__builtin_inf()), high = -all<Doubles>(__builtin_inf());
    Longs zeros{};

    // Returns whether all squares are finite; if not, nothing was added, but to the digest.
    template <class Lanes>
    inline __attribute__((always_inline)) bool add_clean(DoubleItems items, Lanes& digest) {
        const double* x = items.x;
        Lanes keyed = digest;
        Doubles s[2] = {sum[0], sum[1]}, q[2] = {squares[0], squares[1]}, least = low, most = high;
        Longs none{};
#pragma GCC unroll 1
        for (int k = 0; k < vectors; k += 2) {
#pragma GCC unroll 2
            for (int side = 0; side < 2; ++side) {
                Doubles v;
                fetch_ahead(reinterpret_cast<const char*>(x + k * double_lanes), side);
                memcpy(&v, x + (k + side) * double_lanes, width);
                keyed.add(v, k + side, side);
                none -= v == 0.0;
                least = lesser(least, v);
                most = greater(most, v);
                s[side] += v;
                q[side] = plus_square(q[side], v);
            }
        }
        keyed.advance(vectors * width / stripe_bytes);
        digest = keyed;
        if (!all_finite(q[0] + q[1])) return false;
        for (int side = 0; side < 2; ++side) sum[side] = s[side], squares[side] = q[side];
        zeros += none;
        low = least;
        high = most;
        return true;
    }
};

struct DoubleSums {
    using Totals = DoubleTotals;
    static constexpr int vectors = Totals::vectors;
    static constexpr size_t group = Totals::group;
    static constexpr bool masked = false;  // the next group is tried as a clean one

    Totals totals;
    Lost<Longs> lost;

    template <class Lanes>
    void add_unclean(DoubleItems items, Lanes&) { add_masked(items); }

    void add_masked(DoubleItems items) {
        const double* x = items.x;
#pragma GCC unroll 1
        for (int k = 0; k < vectors; ++k) {
            Longs bits;
            memcpy(&bits, x + k * double_lanes, width);
            const Longs finite = lost.add(bits, all<Longs>(0x7ff0000000000000)), kept = bits & finite;
            totals.zeros -= (bits & INT64_MAX) == 0;
            const Longs up = select(bits, all<Longs>(0x7ff0000000000000), finite), down = up | (~finite & INT64_MIN);
            Doubles v, below, above;
            memcpy(&v, &kept, width);
            memcpy(&below, &up, width);
            memcpy(&above, &down, width);
            totals.low = lesser(totals.low, below);
            totals.high = greater(totals.high, above);
            totals.sum[k & 1] += v;
            totals.squares[k & 1] = plus_square(totals.squares[k & 1], v);
        }
    }

    void finish(Quick& quick) const {
        quick.sum += total_of(totals.sum[0] + totals.sum[1]);
        quick.squares += total_of(totals.squares[0] + totals.squares[1]);
        quick.zeros += total_of(totals.zeros);
        lost.finish(quick);
        for (int k = 0; k < double_lanes; ++k) {
            quick.min = totals.low[k] < quick.min ? totals.low[k] : quick.min;
            quick.max = totals.high[k] > quick.max ? totals.high[k] : quick.max;
        }
    }
};
