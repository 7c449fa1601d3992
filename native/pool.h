// Threads for one call: those of the OpenMP that torch has brought into the process, if there is one, else a few of our
// own. After an op of torch its threads look for more work for a while, on the processors that threads of our own would
// need. That OpenMP is looked up when it is needed; nothing is linked against it.
#pragma once

#include <cstddef>

namespace graphprobe {

// Calls work(context, i) for i in 0..count-1 on the calling thread and up to `threads` - 1 others; returns when all are
// done. If our own pool is busy with a call from another thread, everything runs on the calling thread.
void parallel(size_t count, int threads, void (*work)(void*, size_t), void* context);

}  // namespace graphprobe
