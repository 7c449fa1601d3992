// Statistics of any values, NaN and Inf included, through doubles: every kind, and the way out of the fast paths.
// Part of kernels.cpp, inside its namespaces.
#pragma once

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
        if (part.min == part.max) {  // one number again and again
            const double one = part.min * scale;
            part.sum = static_cast<double>(part.finite) * one;
            part.sum_squares = part.sum * one;
            return merge(total, part);
        }
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

// Sums around a centre. There are four of each, because one would wait for itself.
struct Away {
    static constexpr int parts = 4;
    Doubles squares[parts] = {}, drift[parts] = {};

    inline __attribute__((always_inline)) void add(Doubles away, int part) {
        squares[part] = plus_square(squares[part], away);
        drift[part] += away;
    }
    static double total(const Doubles* sums) { return total_of((sums[0] + sums[1]) + (sums[2] + sums[3])); }
};

// Of the finite values of whole groups.
inline void add_away(const Task& task, const char* data, size_t bytes, double centre, Away& total) {
    constexpr int64_t inf_bits = 0x7ff0000000000000;
    alignas(64) double values[small];
    const size_t item = static_cast<size_t>(item_size(task.kind));
    for (size_t left = bytes / item; left;) {
        const int n = static_cast<int>(left < small ? left : small);
        widen(task, data, n, values);
        Away sums = total;  // a copy, which no other function sees: it stays in registers
        for (int i = 0; i < n; i += Away::parts * double_lanes)
#pragma GCC unroll 4
            for (int part = 0; part < Away::parts; ++part) {
                Longs bits;
                Doubles v;
                memcpy(&bits, values + i + part * double_lanes, width);
                memcpy(&v, values + i + part * double_lanes, width);
                sums.add((bits & INT64_MAX) < inf_bits ? v - centre : Doubles{}, part);
            }
        total = sums;
        data += static_cast<size_t>(n) * item;
        left -= static_cast<size_t>(n);
    }
}

// The same of values that are all finite and no wider than floats.
inline void add_away_of_floats(const Task& task, const char* data, size_t bytes, double centre, Away& total) {
    alignas(64) float values[small];
    const size_t item = static_cast<size_t>(item_size(task.kind));
    for (size_t left = bytes / item; left;) {
        const int n = static_cast<int>(left < small ? left : small);
        const char* from = data;
        if (task.kind != Kind::f32) from = reinterpret_cast<const char*>(as_floats(task.kind, data, n, values));
        Away sums = total;
        for (int i = 0; i < n; i += Away::parts * double_lanes)
#pragma GCC unroll 4
            for (int part = 0; part < Away::parts; ++part) {
                HalfFloats v;
                memcpy(&v, from + 4 * (i + part * double_lanes), width / 2);
                sums.add(as_doubles(v) - centre, part);
            }
        total = sums;
        data += static_cast<size_t>(n) * item;
        left -= static_cast<size_t>(n);
    }
}

// Sums of the finite values around a number near their mean, in doubles, which leaves no digits to lose: for values of
// small variance, whose counts and extremes the fast path has found already. Nothing here is scaled. False if the number
// was further from the mean than a quarter of the deviation.
bool centred(const Task& task, const char* data, size_t bytes, double centre, Partial& part) {
    const double n = static_cast<double>(part.finite);
    Away away;
    if (task.kind != Kind::f64 && n == static_cast<double>(bytes / static_cast<size_t>(item_size(task.kind)))) {
        add_away_of_floats(task, data, bytes, centre, away);
    } else {
        add_away(task, data, bytes, centre, away);
    }
    const double drifted = Away::total(away.drift), off = drifted / n;
    part.sum = n * centre + drifted;
    part.deviation = Away::total(away.squares) - drifted * off;
    part.sum_squares = part.deviation + part.sum * (part.sum / n);
    return off * off * 16 * n <= part.deviation;
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
