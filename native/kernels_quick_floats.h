// Sums of float32, and of what becomes it.
// Part of kernels.cpp, inside its namespaces.
#pragma once

// In each lane of two accumulators 16 values are added as floats before they are widened. Two, because one would wait
// for itself. A group whose squares are not finite is read again: with -inf left out, which masks of attention are full
// of, and if that is not all, with a mask. The group after such a one begins that way.
struct FloatTotals {
    static constexpr int vectors = 32;
    static constexpr size_t group = vectors * float_lanes;

    Doubles sum{}, squares{};
    FloatVector low = all<FloatVector>(__builtin_inff()), high = -all<FloatVector>(__builtin_inff());
    Ints zeros{};

    // Returns whether all squares are finite; if not, nothing was added, but to the digest.
    template <class Source, class Lanes>
    inline __attribute__((always_inline)) bool add_clean(Source x, Lanes& digest) {
        Ints left_out{};
        return add_group<false>(x, digest, left_out);
    }

    // The same, and if `leave_out`, of values that are not -inf, which are counted.
    template <bool leave_out, class Source, class Lanes>
    inline __attribute__((always_inline)) bool add_group(Source x, Lanes& digest, Ints& left_out) {
        Lanes keyed = digest;
        FloatVector s[2] = {}, q[2] = {}, least = low, most = high;
        Ints none{}, below{};
#pragma GCC unroll 1  // unrolled, it would be made a tree of sums that needs more registers than there are
        for (int k = 0; k < vectors; k += Source::step) {
            FloatVector v[Source::step];
            x.take(k, v, keyed);
#pragma GCC unroll 4
            for (int j = 0; j < Source::step; ++j) {
                FloatVector lower = v[j];
                most = greater(most, v[j]);
                if constexpr (leave_out) {
                    Ints bits;
                    memcpy(&bits, v + j, width);
                    const Ints bad = bits == static_cast<int32_t>(0xff800000), kept = bits & ~bad;
                    const Ints up = kept | (bad & 0x7f800000);
                    below -= bad;
                    memcpy(v + j, &kept, width);
                    memcpy(&lower, &up, width);
                }
                none = plus_zeros(none, v[j]);
                least = lesser(least, lower);
                s[j % 2] += v[j];
                q[j % 2] = plus_square(q[j % 2], v[j]);
            }
        }
        keyed.advance(group * Source::item / stripe_bytes);
        digest = keyed;
        const Doubles more = widened(q[0]) + widened(q[1]);
        if (!all_finite(more)) return false;
        add(s, more);
        zeros += none - below;
        left_out += below;
        low = least;
        high = most;
        return true;
    }

    inline __attribute__((always_inline)) void add(const FloatVector* s, Doubles more) {
        sum += widened(s[0]) + widened(s[1]);
        squares += more;
    }
};

struct FloatSums {
    using Totals = FloatTotals;
    static constexpr int vectors = Totals::vectors;
    static constexpr size_t group = Totals::group;

    Totals totals;
    Lost<Ints> lost;
    enum { nothing, negative_infinity, anything } masked = nothing;

    // A group after one that was not clean; or that one itself, with NoDigest, because its digest has been made.
    template <class Source, class Lanes>
    inline void add_unclean(Source x, Lanes& of_digest) {
        if (masked != anything) {
            Ints left_out{};
            if (totals.add_group<true>(x, of_digest, left_out)) {
                lost.negative += left_out;
                masked = any(left_out) ? negative_infinity : nothing;
                return;
            }
        } else {
            of_digest.add_stripes(x.x, group * x.item / stripe_bytes);
        }
        add_masked(x);
    }

    // In two rounds: for one there are not registers enough.
    template <class Source>
    void add_masked(Source source) {
        alignas(64) float room[group];
        const float* x = source.floats(group, room);
        masked = count(x) ? anything : nothing;
        FloatVector s[2] = {}, q[2] = {}, least = totals.low, most = totals.high;
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
        totals.add(s, widened(q[0]) + widened(q[1]));
        totals.low = least;
        totals.high = most;
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
        totals.zeros += none;
        lost.nan += outside - positive - negative;
        lost.positive += positive;
        lost.negative += negative;
        return any(outside);
    }

    void finish(Quick& quick) const {
        quick.sum += total_of(totals.sum);
        quick.squares += total_of(totals.squares);
        quick.zeros += total_of(totals.zeros);
        lost.finish(quick);
        for (int k = 0; k < float_lanes; ++k) {
            quick.min = totals.low[k] < quick.min ? static_cast<double>(totals.low[k]) : quick.min;
            quick.max = totals.high[k] > quick.max ? static_cast<double>(totals.high[k]) : quick.max;
        }
    }
};
