// Statistics of any values, NaN and Inf included, through doubles: every kind, and the way out of the fast paths.
// Part of kernels.cpp, inside its namespaces.
#pragma once

// Vectors of the compiler (GCC and Clang), as wide as the registers; a comparison gives lanes of 0 or -1.
#if defined(__AVX512BW__)
constexpr int width = 64;
#elif defined(__AVX2__)
constexpr int width = 32;
#else
constexpr int width = 16;
#endif
using Doubles = double __attribute__((vector_size(width)));
using Longs = int64_t __attribute__((vector_size(width)));
constexpr int double_lanes = width / 8;

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

// A double's bits as an integer that sorts as the numbers do; its own inverse.
template <class Bits>
inline Bits sortable(Bits bits) {
    return bits ^ ((bits >> 63) & INT64_MAX);
}

inline double from_sortable(int64_t key) {
    const int64_t bits = sortable(key);
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

// Any values, NaN and Inf included; `x` has room for double_lanes more. Squares are those of the distance to the mean.
void careful_values(double* x, int n, double scale, Partial& total) {
    constexpr int64_t inf_bits = 0x7ff0000000000000;
    int padding = 0;
    for (; (n + padding) % double_lanes; ++padding) x[n + padding] = __builtin_nan("");
    const int end = n + padding;
    Longs nan{}, positive{}, negative{}, zeros{}, low = all<Longs>(INT64_MAX), high = all<Longs>(INT64_MIN);
    Doubles sum{}, squares{};
    for (int i = 0; i < end; i += double_lanes) {
        Longs bits;
        Doubles v;
        memcpy(&bits, x + i, width);
        memcpy(&v, x + i, width);
        const Longs magnitude = bits & INT64_MAX, key = sortable(bits), finite = magnitude < inf_bits;
        nan -= magnitude > inf_bits;
        positive -= bits == inf_bits;
        negative -= bits == (inf_bits | INT64_MIN);
        zeros -= magnitude == 0;
        const Longs lower = finite ? key : all<Longs>(INT64_MAX), upper = finite ? key : all<Longs>(INT64_MIN);
        low = lower < low ? lower : low;
        high = upper > high ? upper : high;
        v = finite ? v * scale : Doubles{};
        sum += v;
        squares += v * v;
    }
    Partial part;
    part.nan = total_of(nan) - padding;
    part.positive_inf = total_of(positive);
    part.negative_inf = total_of(negative);
    part.zeros = total_of(zeros);
    part.finite = n - part.nan - part.positive_inf - part.negative_inf;
    if (part.finite) {
        int64_t least = low[0], most = high[0];
        for (int i = 1; i < double_lanes; ++i) {
            least = low[i] < least ? low[i] : least;
            most = high[i] > most ? high[i] : most;
        }
        part.min = from_sortable(least);
        part.max = from_sortable(most);
        part.sum = total_of(sum);
        part.sum_squares = total_of(squares);
        const double count = static_cast<double>(part.finite), mean = part.sum / count;
        Doubles deviation{}, drift{};
        for (int i = 0; i < end; i += double_lanes) {
            Longs bits;
            Doubles v;
            memcpy(&bits, x + i, width);
            memcpy(&v, x + i, width);
            const Doubles away = (bits & INT64_MAX) < inf_bits ? v * scale - mean : Doubles{};
            deviation += away * away;
            drift += away;
        }
        const double drifted = total_of(drift);
        part.deviation = total_of(deviation) - drifted * drifted / count;
    }
    merge(total, part);
}

// Sums around a centre.
struct Away {
    Doubles squares[2] = {}, drift[2] = {};
};

// Of the finite values of whole stripes.
inline void add_away(const Task& task, const char* data, size_t bytes, double centre, Away& total) {
    constexpr int64_t inf_bits = 0x7ff0000000000000;
    alignas(64) double values[small];
    const size_t item = static_cast<size_t>(item_size(task.kind));
    for (size_t left = bytes / item; left;) {
        const int n = static_cast<int>(left < small ? left : small);  // whole vectors, because the bytes are whole stripes
        widen(task, data, n, values);
        for (int i = 0; i < n; i += double_lanes) {
            Longs bits;
            Doubles v;
            memcpy(&bits, values + i, width);
            memcpy(&v, values + i, width);
            const Doubles away = (bits & INT64_MAX) < inf_bits ? v - centre : Doubles{};
            const int side = i / double_lanes & 1;
            total.squares[side] += away * away;
            total.drift[side] += away;
        }
        data += static_cast<size_t>(n) * item;
        left -= static_cast<size_t>(n);
    }
}

// The same of values that are all finite and no wider than floats, in floats: a number's difference from one nearby is
// exact. In each lane of two accumulators 16 of them are added before they are widened.
inline void add_away_in_floats(const Task& task, const char* data, size_t bytes, float centre, Away& total) {
    using Floats = float __attribute__((vector_size(width)));
    using HalfOfThem = float __attribute__((vector_size(width / 2)));
    constexpr int floats = width / 4, group = 32 * floats;
    alignas(64) float values[group];
    const auto widened = [](const Floats& sums) {
        HalfOfThem part[2];
        memcpy(part, &sums, width);
        return __builtin_convertvector(part[0], Doubles) + __builtin_convertvector(part[1], Doubles);
    };
    const size_t item = static_cast<size_t>(item_size(task.kind));
    for (size_t left = bytes / item; left;) {
        const int n = static_cast<int>(left < group ? left : group);
        const char* from = data;
        if (task.kind != Kind::f32) from = reinterpret_cast<const char*>(as_floats(task.kind, data, n, values));
        Floats squares[2] = {}, drift[2] = {};
        const auto add = [&](int at, int side) {
            Floats v;
            memcpy(&v, from + 4 * at, width);
            const Floats away = v - centre;
            squares[side] += away * away;
            drift[side] += away;
        };
        int at = 0;
        for (; at + 2 * floats <= n; at += 2 * floats) add(at, 0), add(at + floats, 1);
        if (at < n) add(at, 0);
        for (int side = 0; side < 2; ++side) {
            total.squares[side] += widened(squares[side]);
            total.drift[side] += widened(drift[side]);
        }
        data += static_cast<size_t>(n) * item;
        left -= static_cast<size_t>(n);
    }
}

// Sums of the finite values around a number near their mean, which leaves no digits to lose: for values of small variance,
// whose counts and extremes the fast path has found already. Nothing here is scaled. False if the number was further
// from the mean than the rounding of a float explains, and than a quarter of the deviation.
bool centred(const Task& task, const char* data, size_t bytes, double centre, Partial& part) {
    const double n = static_cast<double>(part.finite);
    Away away;
    bool done = false;
    if (task.kind != Kind::f64 && n == static_cast<double>(bytes / static_cast<size_t>(item_size(task.kind)))) {
        add_away_in_floats(task, data, bytes, static_cast<float>(centre), away);
        const double squares = total_of(away.squares[0] + away.squares[1]);
        done = squares >= n * 0x1p-80 && squares < __builtin_inf();  // else some may have under- or overflowed
    }
    if (!done) {
        away = Away();
        add_away(task, data, bytes, centre, away);
    }
    const double drifted = total_of(away.drift[0] + away.drift[1]);
    part.sum = n * centre + drifted;
    part.deviation = total_of(away.squares[0] + away.squares[1]) - drifted * (drifted / n);
    part.sum_squares = part.deviation + part.sum * (part.sum / n);
    const double off = drifted / n;
    return off * off * 16 * n <= part.deviation || __builtin_fabs(off) <= __builtin_fabs(centre) * 0x1p-24;
}

void careful(const Task& task, const char* data, size_t bytes, Partial& total) {
    alignas(64) double values[2 * small + double_lanes];
    const size_t item = static_cast<size_t>(item_size(task.kind));
    for (size_t left = bytes / item; left;) {
        const int n = static_cast<int>(left < small ? left : small);
        widen(task, data, n, values);
        careful_values(values, task.kind == Kind::table2 ? 2 * n : n, task.scale, total);
        data += static_cast<size_t>(n) * item;
        left -= static_cast<size_t>(n);
    }
}
