// The loops over one chunk. Compiled once per instruction set, each time with another GRAPHPROBE_ISA as namespace.
//
// Nothing from the standard library is instantiated here: a template of it, compiled for AVX-512, could be the copy
// that the linker keeps for everybody. Reductions may be reordered by the compiler (-fassociative-math), but NaN and
// Inf keep their meaning: elements are classified by their bits. No product and sum are fused (-ffp-contract=off)
// except where an intrinsic says so, because moduli of complex numbers must equal those of the pure fallback.
#include <cstring>

#include "stats.h"

#if defined(__AVX512BW__) || defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

namespace graphprobe {
namespace GRAPHPROBE_ISA {
namespace {

constexpr int small = 1024;  // values that are looked at as doubles at a time; they stay in the first-level cache

template <class T>
inline T load(const char* at) {
    T value;
    memcpy(&value, at, sizeof value);
    return value;
}

#include "kernels_vectors.h"
#include "kernels_digest.h"
#include "kernels_widen.h"
#include "kernels_careful.h"

// What a fast path found in whole groups. Finite squares that overflowed show as a sum of squares that is not finite.
struct Quick {
    double min, max, sum, squares;
    int64_t zeros, nan, positive_inf, negative_inf;
};

#include "kernels_quick.h"

}  // namespace

void chunk(const Task& task, const char* data, size_t bytes, uint64_t block, Partial& total, Digest* digest) {
    const bool known = task.kind == Kind::f32 || task.kind == Kind::f64 || task.kind == Kind::f16 || task.kind == Kind::bf16;
    // A rest of less than a group goes the careful way, its digest with that of its block.
    const size_t item = static_cast<size_t>(item_size(task.kind)), stripes = bytes / stripe_bytes;
    const size_t group = (task.kind == Kind::f64 ? DoubleSums::group : FloatSums::group) * item;
    const size_t rest = bytes % group, whole = bytes - rest;
    if (!known || task.careful || whole == 0) {
        if (digest) digest_chunk(data, bytes, block, *digest);
        careful(task, data, bytes, total);
        return;
    }
    Quick quick;
    switch (task.kind) {
        case Kind::f32: quick_f32(data, stripes, block, quick, digest); break;
        case Kind::f64: quick_f64(data, stripes, block, quick, digest); break;
        case Kind::f16: quick_16<false>(data, stripes, block, quick, digest); break;
        default: quick_16<true>(data, stripes, block, quick, digest); break;
    }
    const int64_t items = static_cast<int64_t>(whole / item);
    const int64_t some = items - quick.nan - quick.positive_inf - quick.negative_inf;
    const double n = static_cast<double>(some ? some : 1);
    const double deviation = quick.squares - quick.sum * (quick.sum / n);
    uint64_t squares_bits, sum_bits;
    memcpy(&squares_bits, &quick.squares, 8);
    memcpy(&sum_bits, &quick.sum, 8);
    constexpr uint64_t inf_bits = 0x7ff0000000000000;
    const bool finite = (squares_bits & inf_bits) != inf_bits && (sum_bits & inf_bits) != inf_bits;
    const bool narrow = task.kind != Kind::f64;  // squares may have been formed as floats
    const bool tiny = narrow && quick.squares < n * 0x1p-80 && (quick.min < 0 || quick.max > 0);
    if (!finite || tiny) {  // squares overflowed, or may have underflowed
        careful(task, data, whole, total);
    } else {
        Partial part;
        part.finite = some;
        part.nan = quick.nan;
        part.positive_inf = quick.positive_inf;
        part.negative_inf = quick.negative_inf;
        part.zeros = quick.zeros;
        part.min = quick.min;
        part.max = quick.max;
        part.sum = quick.sum;
        part.sum_squares = quick.squares;
        part.deviation = deviation;
        // A mean so large that the difference of the two sums has lost digits.
        // The mean found so far comes from sums of floats: where it is off by much of a deviation, it is mended first.
        bool again = deviation < quick.squares * 0x1p-4;
        if (again && part.min == part.max) {  // one number again and again
            part.sum = n * part.min;
            part.sum_squares = part.sum * part.min;
            part.deviation = 0;
            again = false;
        }
        for (int round = 0; again && round < 3; ++round) again = !centred(task, data, whole, part.sum / n, part);
        merge(total, part);
    }
    if (rest) careful(task, data + whole, rest, total);
    const size_t tail = bytes % stripe_bytes;
    if (digest && tail)
        digest_rest(data + bytes - tail, tail, stripes % block_stripes, block + stripes / block_stripes, *digest);
}

}  // namespace GRAPHPROBE_ISA
}  // namespace graphprobe
