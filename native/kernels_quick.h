// The fast paths: whole groups of floats. What is left of a block is only digested here.
// Part of kernels.cpp, inside its namespaces.
#pragma once

#include "kernels_quick_sources.h"
#include "kernels_quick_floats.h"
#include "kernels_quick_doubles.h"

// Block by block, so that a second look at the data finds them in the first-level cache.
template <class Each>
void quick_blocks(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest, Each each) {
    quick = {__builtin_inf(), -__builtin_inf(), 0, 0, 0, 0, 0, 0};
    while (stripes) {
        const size_t here = stripes < block_stripes ? stripes : block_stripes;
        uint32_t state[lanes] = {};
        each(data, here, digest ? state : nullptr);
        if (digest) fold(state, block++, *digest);
        data += here * stripe_bytes;
        stripes -= here;
    }
}

// Calls each(lanes of the digest): once, while the values are in registers, or after the digest has been made.
template <class Each>
void with_digest([[maybe_unused]] const char* data, [[maybe_unused]] size_t stripes, uint32_t* state, Each each) {
#if defined(__AVX2__)
    if (state) {
        DigestLanes digest;
        each(digest);
        digest.store(state);
        return;
    }
#else
    if (state) digest_stripes(data, stripes, state);
#endif
    NoDigest none;
    each(none);
}

void quick_f32(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    FloatSums sums;
    quick_blocks(data, stripes, block, quick, digest, [&](const char* from, size_t here, uint32_t* state) {
        const Singles x{reinterpret_cast<const float*>(from)};
        with_digest(from, here, state, [&](auto& keyed) { add_block(sums, x, here * stripe_bytes / 4, keyed); });
    });
    sums.finish(quick);
}

void quick_f64(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    DoubleSums sums;
    quick_blocks(data, stripes, block, quick, digest, [&](const char* from, size_t here, uint32_t* state) {
        const DoubleItems x{reinterpret_cast<const double*>(from)};
        with_digest(from, here, state, [&](auto& keyed) { add_block(sums, x, here * stripe_bytes / 8, keyed); });
    });
    sums.finish(quick);
}

template <bool brain_float>
void quick_16(const char* data, size_t stripes, uint64_t block, Quick& quick, Digest* digest) {
    FloatSums sums;
    quick_blocks(data, stripes, block, quick, digest, [&](const char* from, size_t here, uint32_t* state) {
        const size_t n = here * stripe_bytes / 2;
#if defined(__AVX2__)
        const Halves<brain_float> x{from};
        with_digest(from, here, state, [&](auto& keyed) { add_block(sums, x, n, keyed); });
#else
        alignas(64) float values[block_bytes / 2];
        for (size_t i = 0; i < n; ++i) {
            const uint16_t bits = load<uint16_t>(from + 2 * i);
            values[i] = brain_float ? brain(bits) : half(bits);
        }
        with_digest(from, here, state, [](auto&) {});
        NoDigest none;
        add_block(sums, Singles{values}, n, none);
#endif
    });
    sums.finish(quick);
}
