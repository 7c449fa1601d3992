// The loops over one segment of two tensors. Compiled once per instruction set, as kernels.cpp is, but without
// -fassociative-math: sums are added in the order that graphprobe/numerics/pair_numpy.py states, by 8 lanes whatever the
// width of the registers, and no product and sum are fused. Both give the same bits.
#include "pair.h"

#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace graphprobe {
namespace GRAPHPROBE_ISA {
namespace {

template <class T>
inline T load(const char* at) {
    T value;
    memcpy(&value, at, sizeof value);
    return value;
}

#include "kernels_widen.h"

#if defined(__AVX2__)
constexpr int width = 32;
#else
constexpr int width = 16;
#endif
using Doubles = double __attribute__((vector_size(width)));
using Longs = int64_t __attribute__((vector_size(width)));
constexpr int vector_lanes = width / 8, vectors = pair_lanes / vector_lanes;

constexpr int64_t inf_bits = 0x7ff0000000000000;

template <class Vector>
inline Vector at(const double* from) {
    Vector v;
    memcpy(&v, from, width);
    return v;
}

inline Doubles every(double x) { return Doubles{} + x; }
inline Longs bits_of(Doubles v) { return (Longs)v; }
inline Doubles size_of(Doubles v) { return (Doubles)(bits_of(v) & INT64_MAX); }
inline Doubles larger(Doubles a, Doubles b) { return a > b ? a : b; }

// One row of 8 sums.
struct Row {
    Doubles part[vectors] = {};

    double total() const {  // 4 to 4, 2 to 2, 1 to 1
        double v[pair_lanes];
        memcpy(v, part, sizeof v);
        for (int half = pair_lanes / 2; half; half /= 2)
            for (int i = 0; i < half; ++i) v[i] += v[i + half];
        return v[0];
    }
};

template <class Vector, class Each>
inline auto over(Vector v, Each each) {
    auto result = v[0];
    for (int i = 1; i < vector_lanes; ++i) result = each(result, v[i]);
    return result;
}

inline int64_t added(Longs v) {
    return over(v, [](int64_t a, int64_t b) { return a + b; });
}
inline double least(Doubles v) {
    return over(v, [](double a, double b) { return a < b ? a : b; });
}
inline double most(Doubles v) {
    return over(v, [](double a, double b) { return a > b ? a : b; });
}

struct Tile {
    alignas(64) double a[pair_tile], b[pair_tile], gap[pair_tile];
    int n = 0;         // elements
    int padded = 0;    // whole rows of 8, zeros after the last element
    int masked = 0;    // elements that are 0 here because one side is not finite, and padding
    bool with_gap = false;
};

void read_side(const PairSide& side, uint64_t begin, int n, double* out) {
    Task task;
    task.kind = side.kind;
    task.table = side.table;
    const int per_item = side.kind == Kind::table2 ? 2 : 1;
    widen(task, side.data + begin / per_item * static_cast<size_t>(item_size(side.kind)), n / per_item, out);
}

template <class T>
void exact_gaps(const char* a, const char* b, Tile& tile) {
    for (int i = 0; i < tile.n; ++i) {
        const T x = load<T>(a + i * 8), y = load<T>(b + i * 8);
        tile.gap[i] = static_cast<double>(x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y)
                                                : static_cast<uint64_t>(y) - static_cast<uint64_t>(x));
    }
    tile.with_gap = true;
}

void extend(double value, double& low, double& high) {
    low = value < low ? value : low;
    high = value > high ? value : high;
}

struct Extremes {
    Doubles low[2], high[2];

    Extremes(double least, double most) : low{every(least), every(least)}, high{every(most), every(most)} {}
    void add(Doubles under, Doubles over, int side) {
        low[side] = under < low[side] ? under : low[side];
        high[side] = over > high[side] ? over : high[side];
    }
    void finish(double& smallest, double& greatest) const {
        smallest = least(low[0] < low[1] ? low[0] : low[1]);
        greatest = most(larger(high[0], high[1]));
    }
};

// Takes in the extremes if all elements are finite; otherwise says so and changes nothing.
bool all_finite(const double* x, int n, double& low, double& high) {
    Extremes extremes(low, high);
    Longs bad{};
    int i = 0, side = 0;
    for (; i + vector_lanes <= n; i += vector_lanes, side ^= 1) {
        const Doubles v = at<Doubles>(x + i);
        bad |= (bits_of(v) & INT64_MAX) >= inf_bits;
        extremes.add(v, v, side);
    }
    double least = 0, most = 0;
    extremes.finish(least, most);
    for (; i < n; ++i) {
        if (!(__builtin_fabs(x[i]) < __builtin_inf())) return false;
        extend(x[i], least, most);
    }
    if (over(bad, [](int64_t a, int64_t b) { return a | b; })) return false;
    low = least;
    high = most;
    return true;
}

void add_sums(const double* x, int padded, double scale, double& sum, double& squares) {
    Row s, q;
    for (int i = 0; i < padded; i += pair_lanes)
        for (int k = 0; k < vectors; ++k) {
            const Doubles v = at<Doubles>(x + i + k * vector_lanes) * scale;
            s.part[k] += v;
            q.part[k] += v * v;
        }
    sum += s.total();
    squares += q.total();
}

inline Longs classes_of(Longs bits) {  // 0 finite, 1 NaN, 2 +Inf, 3 -Inf
    const Longs magnitude = bits & INT64_MAX, infinite = magnitude == inf_bits, negative = bits < 0;
    return ((magnitude > inf_bits) & 1) | (infinite & 2) | (infinite & negative & 1);
}

// Counts the classes, takes what is finite on one side only, and leaves 0 wherever one side is not finite.
__attribute__((noinline)) void separate(const PairTask& task, int64_t begin, Tile& tile, PairPart& part) {
    alignas(64) double a_alone[pair_tile], b_alone[pair_tile];
    alignas(64) int64_t codes[pair_tile];
    const Doubles infinity = every(__builtin_inf());
    Extremes of_a(part.min_a, part.max_a), of_b(part.min_b, part.max_b);
    Longs alone_a{}, alone_b{}, differ{};
    int side = 0;
    for (int i = tile.n; i < tile.padded; ++i) tile.a[i] = tile.b[i] = __builtin_nan("");
    for (int i = 0; i < tile.padded; i += vector_lanes, side ^= 1) {
        const Doubles a = at<Doubles>(tile.a + i), b = at<Doubles>(tile.b + i), zero{};
        const Longs class_a = classes_of(bits_of(a)), class_b = classes_of(bits_of(b));
        const Longs finite_a = class_a == 0, finite_b = class_b == 0, both = finite_a & finite_b;
        of_a.add(finite_a ? a : infinity, finite_a ? a : -infinity, side);
        of_b.add(finite_b ? b : infinity, finite_b ? b : -infinity, side);
        const Doubles kept_a = both ? a : zero, kept_b = both ? b : zero;
        const Longs only_a = finite_a & ~finite_b, only_b = finite_b & ~finite_a;
        const Doubles lone_a = only_a ? a : zero, lone_b = only_b ? b : zero;
        const Longs code = 4 * class_a + class_b;
        alone_a |= only_a;
        alone_b |= only_b;
        differ |= class_a != class_b;
        memcpy(tile.a + i, &kept_a, width);
        memcpy(tile.b + i, &kept_b, width);
        memcpy(a_alone + i, &lone_a, width);
        memcpy(b_alone + i, &lone_b, width);
        memcpy(codes + i, &code, width);
    }
    of_a.finish(part.min_a, part.max_a);
    of_b.finish(part.min_b, part.max_b);
    int counts[4][16] = {};
    for (int i = 0; i < tile.n; ++i) ++counts[i & 3][codes[i]];
    tile.masked = tile.padded - counts[0][0] - counts[1][0] - counts[2][0] - counts[3][0];
    for (int i = 0; i < 16; ++i) {
        const int found = counts[0][i] + counts[1][i] + counts[2][i] + counts[3][i];
        part.classes[i] += found;
        part.unequal += i % 5 ? found : 0;
    }
    const auto any = [](Longs v) { return over(v, [](int64_t a, int64_t b) { return a | b; }) != 0; };
    for (int i = 0; any(differ) && part.first_mismatch < 0; ++i)
        if (codes[i] % 5) part.first_mismatch = begin + i;
    if (any(alone_a)) add_sums(a_alone, tile.padded, task.a.scale, part.sums.sum_a_alone, part.sums.squares_a_alone);
    if (any(alone_b)) add_sums(b_alone, tile.padded, task.b.scale, part.sums.sum_b_alone, part.sums.squares_b_alone);
}

void add_products(const PairTask& task, const Tile& tile, PairSums& sums) {
    Row dot, squares_a, squares_b, sum_a, sum_b;
    for (int i = 0; i < tile.padded; i += pair_lanes)
        for (int k = 0; k < vectors; ++k) {
            const Doubles a = at<Doubles>(tile.a + i + k * vector_lanes) * task.a.scale;
            const Doubles b = at<Doubles>(tile.b + i + k * vector_lanes) * task.b.scale;
            dot.part[k] += a * b;
            squares_a.part[k] += a * a;
            squares_b.part[k] += b * b;
            sum_a.part[k] += a;
            sum_b.part[k] += b;
        }
    sums.dot += dot.total();
    sums.squares_a += squares_a.total();
    sums.squares_b += squares_b.total();
    sums.sum_a += sum_a.total();
    sums.sum_b += sum_b.total();
}

inline double gap_at(const Tile& tile, int i) {
    return tile.with_gap ? tile.gap[i] : __builtin_fabs(tile.a[i] - tile.b[i]);
}

// The first element of the tile whose measure is as large as `top`, if that is more than what was found before.
template <class Measure>
void note(Largest& largest, double top, int64_t begin, const Tile& tile, Measure measure) {
    if (!(top > largest.value)) return;
    int i = 0;
    while (i < tile.n - 1 && measure(i) != top) ++i;
    largest.add(top, begin + i);
}

void add_errors(const PairTask& task, int64_t begin, const Tile& tile, PairPart& part) {
    const double scale = task.a.scale < task.b.scale ? task.a.scale : task.b.scale;
    const Doubles tiny = every(task.smallest_normal), zero{};
    Row errors, squares;
    Doubles top{}, ratio_top{}, halves_top = every(part.halves), z_top{};
    Longs different{}, lost{}, within_1{}, within_5{}, above{};
    for (int i = 0; i < tile.padded; i += pair_lanes)
        for (int k = 0; k < vectors; ++k) {
            const int from = i + k * vector_lanes;
            const Doubles a = at<Doubles>(tile.a + from), b = at<Doubles>(tile.b + from);
            const Doubles gap = tile.with_gap ? at<Doubles>(tile.gap + from) : size_of(a - b), error = gap * scale;
            errors.part[k] += error * error;
            top = larger(gap, top);
            const Longs differs = gap > zero;
            different -= differs;
            const Doubles size_b = size_of(b);
            const Longs none = size_b == zero;
            lost -= none & differs;
            const Doubles ratio = none ? zero : gap / size_b;
            ratio_top = larger(ratio, ratio_top);
            within_1 -= ratio < 0.001;
            within_5 -= ratio < 0.005;
            const Doubles size = larger(larger(size_of(a), size_b), tiny);
            const Longs exponent = bits_of(size) & inf_bits;
            halves_top = larger(gap * (Doubles)(inf_bits - exponent), halves_top);
            const Doubles z = differs ? gap / (task.unit_roundoff * size + task.floor) : zero;
            z_top = larger(z, z_top);
            squares.part[k] += z * z;
            above -= z > task.limit;
        }
    const int64_t zeros = added(lost);
    part.sums.errors += errors.total();
    part.sums.z += squares.total();
    part.unequal += added(different);
    part.zero_reference += zeros;
    part.within_1 += added(within_1) - zeros - tile.masked;
    part.within_5 += added(within_5) - zeros - tile.masked;
    part.above += added(above) - (task.limit < 0 ? tile.masked : 0);
    part.halves = most(halves_top);
    const auto gap = [&](int i) { return gap_at(tile, i); };
    note(part.absolute, most(top), begin, tile, gap);
    note(part.relative, most(ratio_top), begin, tile, [&](int i) {
        const double size = __builtin_fabs(tile.b[i]);
        return size == 0 ? 0 : gap(i) / size;
    });
    note(part.z, most(z_top), begin, tile, [&](int i) {
        double size = __builtin_fabs(tile.a[i]), other = __builtin_fabs(tile.b[i]);
        size = other > size ? other : size;
        size = size > task.smallest_normal ? size : task.smallest_normal;
        const double found = gap(i);
        return found > 0 ? found / (task.unit_roundoff * size + task.floor) : 0;
    });
}

// As both of the above where no bit differs.
void add_equal(const PairTask& task, const Tile& tile, PairPart& part) {
    double sum = 0, squares = 0;
    add_sums(tile.a, tile.padded, task.a.scale, sum, squares);
    part.sums.sum_a += sum;
    part.sums.sum_b += sum;
    part.sums.dot += squares;
    part.sums.squares_a += squares;
    part.sums.squares_b += squares;
    const int finite = tile.padded - tile.masked;
    part.within_1 += finite;
    part.within_5 += finite;
    part.above += task.limit < 0 ? finite : 0;
}

bool wide_integers(Kind kind) { return kind == Kind::i64 || kind == Kind::u64; }

bool same_bytes(const PairTask& task, uint64_t begin, int n) {
    const int per_item = task.a.kind == Kind::table2 ? 2 : 1;
    const size_t item = static_cast<size_t>(item_size(task.a.kind)), from = begin / per_item * item;
    return memcmp(task.a.data + from, task.b.data + from, static_cast<size_t>(n / per_item) * item) == 0;
}

}  // namespace

void pair(const PairTask& task, uint64_t begin, uint64_t end, PairPart& part) {
    const bool same_kind = task.a.kind == task.b.kind && task.a.table == task.b.table;
    Tile tile;
    for (uint64_t first = begin; first < end; first += pair_tile) {
        tile.n = static_cast<int>(end - first < pair_tile ? end - first : pair_tile);
        tile.padded = (tile.n + pair_lanes - 1) / pair_lanes * pair_lanes;
        tile.masked = tile.padded - tile.n;
        tile.with_gap = false;
        const bool equal = same_kind && same_bytes(task, first, tile.n);
        part.bits_equal = part.bits_equal && equal;
        read_side(task.a, first, tile.n, tile.a);
        if (equal) {
            memcpy(tile.b, tile.a, static_cast<size_t>(tile.n) * 8);
        } else {
            read_side(task.b, first, tile.n, tile.b);
        }
        for (int i = tile.n; i < tile.padded; ++i) tile.a[i] = tile.b[i] = tile.gap[i] = 0;
        if (same_kind && !equal && wide_integers(task.a.kind)) {
            const char *a = task.a.data + first * 8, *b = task.b.data + first * 8;
            task.a.kind == Kind::i64 ? exact_gaps<int64_t>(a, b, tile) : exact_gaps<uint64_t>(a, b, tile);
        }
        const int64_t at = static_cast<int64_t>(first);
        double low_a = part.min_a, high_a = part.max_a, low_b = part.min_b, high_b = part.max_b;
        if (all_finite(tile.a, tile.n, low_a, high_a) && all_finite(tile.b, tile.n, low_b, high_b)) {
            part.classes[0] += tile.n;
            part.min_a = low_a, part.max_a = high_a, part.min_b = low_b, part.max_b = high_b;
        } else {
            separate(task, at, tile, part);
        }
        if (equal && task.a.scale == task.b.scale) {
            add_equal(task, tile, part);
        } else {
            add_products(task, tile, part.sums);
            add_errors(task, at, tile, part);
        }
    }
}

}  // namespace GRAPHPROBE_ISA
}  // namespace graphprobe
