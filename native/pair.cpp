// From two tensors to segments and threads, and back to one result.
#include "pair.h"

#include <vector>

#include "pool.h"
#include "subnormals.h"

namespace graphprobe {
namespace {

struct Round {
    const PairTask& task;
    PairFunction pair;
    uint64_t first;  // segment
    std::vector<PairPart> parts;
};

void do_segment(void* context, size_t i) {
    const WithSubnormals mode;
    Round& round = *static_cast<Round*>(context);
    const uint64_t begin = (round.first + i) * pair_segment, left = round.task.count - begin;
    round.pair(round.task, begin, begin + (left < pair_segment ? left : pair_segment), round.parts[i]);
}

void merge(PairPart& into, const PairPart& part) {
    into.bits_equal = into.bits_equal && part.bits_equal;
    into.unequal += part.unequal;
    for (int i = 0; i < 16; ++i) into.classes[i] += part.classes[i];
    if (into.first_mismatch < 0) into.first_mismatch = part.first_mismatch;
    into.sums.dot += part.sums.dot;
    into.sums.squares_a += part.sums.squares_a;
    into.sums.squares_b += part.sums.squares_b;
    into.sums.errors += part.sums.errors;
    into.sums.z += part.sums.z;
    into.sums.sum_a += part.sums.sum_a;
    into.sums.sum_b += part.sums.sum_b;
    into.sums.squares_a_alone += part.sums.squares_a_alone;
    into.sums.squares_b_alone += part.sums.squares_b_alone;
    into.sums.sum_a_alone += part.sums.sum_a_alone;
    into.sums.sum_b_alone += part.sums.sum_b_alone;
    into.absolute.add(part.absolute.value, part.absolute.index);
    into.relative.add(part.relative.value, part.relative.index);
    into.z.add(part.z.value, part.z.index);
    into.zero_reference += part.zero_reference;
    into.within_1 += part.within_1;
    into.within_5 += part.within_5;
    into.above += part.above;
    into.halves = part.halves > into.halves ? part.halves : into.halves;
    into.min_a = part.min_a < into.min_a ? part.min_a : into.min_a;
    into.max_a = part.max_a > into.max_a ? part.max_a : into.max_a;
    into.min_b = part.min_b < into.min_b ? part.min_b : into.min_b;
    into.max_b = part.max_b > into.max_b ? part.max_b : into.max_b;
}

}  // namespace

PairPart compare_pair(const PairTask& task, int threads) {
    constexpr size_t most = 1024;  // segments at a time: what is kept of them does not grow with the tensors
    const uint64_t segments = (task.count + pair_segment - 1) / pair_segment;
    PairPart total;
    total.bits_equal = task.a.kind == task.b.kind && task.a.table == task.b.table;
    Round round{task, pair_function(), 0, {}};
    for (; round.first < segments; round.first += most) {
        const size_t here = segments - round.first < most ? static_cast<size_t>(segments - round.first) : most;
        round.parts.assign(here, PairPart());
        parallel(here, threads, do_segment, &round);
        for (const PairPart& part : round.parts) merge(total, part);  // in their order, whoever did them
    }
    return total;
}

}  // namespace graphprobe
