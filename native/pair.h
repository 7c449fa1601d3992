// One pass over two tensors of one shape; graphprobe/numerics/pair.py says what is measured, pair_numpy.py in which order
// it is added, so that both give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "stats.h"

namespace graphprobe {

constexpr size_t pair_tile = 1024;      // elements looked at together: they stay in the first-level cache
constexpr size_t pair_segment = 65536;  // what one thread takes at a time, and what is summed apart
constexpr int pair_lanes = 8;

struct PairSide {
    const char* data = nullptr;
    Kind kind = Kind::f32;
    const double* table = nullptr;
    double scale = 1;  // multiplies every value before it is summed
};

struct PairTask {
    PairSide a, b;
    uint64_t count = 0;  // elements of each side
    double smallest_normal = 1, unit_roundoff = 0, floor = 0, limit = 0;
};

struct Largest {
    double value = 0;
    int64_t index = -1;
    void add(double other, int64_t at) {
        if (other > value) value = other, index = at;
    }
};

struct PairSums {
    double dot = 0, squares_a = 0, squares_b = 0, errors = 0, z = 0, sum_a = 0, sum_b = 0;
    double squares_a_alone = 0, squares_b_alone = 0, sum_a_alone = 0, sum_b_alone = 0;
};

struct PairPart {
    bool bits_equal = true;
    int64_t unequal = 0, classes[16] = {}, first_mismatch = -1;
    PairSums sums;
    Largest absolute, relative, z;
    int64_t zero_reference = 0, within_1 = 0, within_5 = 0, above = 0;
    double halves = 0;
    double min_a = std::numeric_limits<double>::infinity(), max_a = -min_a, min_b = min_a, max_b = -min_a;
};

// Elements begin..end-1, at most pair_segment of them, into a fresh part.
using PairFunction = void (*)(const PairTask&, uint64_t begin, uint64_t end, PairPart&);

namespace baseline { void pair(const PairTask&, uint64_t, uint64_t, PairPart&); }
namespace avx2 { void pair(const PairTask&, uint64_t, uint64_t, PairPart&); }

PairFunction pair_function();  // for the instruction set in use
PairPart compare_pair(const PairTask&, int threads);

}  // namespace graphprobe
