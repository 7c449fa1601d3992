// Keys and the last step of the digest. graphprobe/numerics/stats_numpy.py computes the same.
#include <algorithm>
#include <vector>

#include "stats.h"

namespace graphprobe {

alignas(64) int16_t block_keys[block_bytes / 2];

// Odd, at least 4096 in size, and no two of the same size: then one changed element, two flipped signs or two exchanged
// elements of a lane change its sum.
void make_block_keys() {
    struct Candidate {
        uint64_t order;
        int value;
    };
    std::vector<Candidate> candidates;
    for (int value = 4097; value < 32768; value += 2) candidates.push_back({splitmix(static_cast<uint64_t>(value)), value});
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.order < b.order; });
    for (size_t i = 0; i < block_bytes / 2; ++i) {
        const int sign = candidates[i].order & 1 ? -1 : 1;
        block_keys[i] = static_cast<int16_t>(sign * candidates[i].value);
    }
}

uint64_t finish_digest(const Digest& digest, uint64_t total_bytes) {
    uint64_t hash = splitmix(total_bytes);
    for (uint64_t lane : digest.lane) hash = splitmix(hash ^ lane);
    return hash;
}

}  // namespace graphprobe
