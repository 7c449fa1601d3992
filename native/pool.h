// A few threads that wait for work; not OpenMP, so that nothing is shared with, or linked against, torch's.
#pragma once

#include <cstddef>

namespace graphprobe {

// Calls work(context, i) for i in 0..count-1 on the calling thread and up to `threads` - 1 others; returns when all are
// done. If the pool is busy with a call from another thread, everything runs on the calling thread.
void parallel(size_t count, int threads, void (*work)(void*, size_t), void* context);

}  // namespace graphprobe
