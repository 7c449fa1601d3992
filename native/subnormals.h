// torch.set_flush_denormal makes the processor take subnormal numbers for 0. What is counted here counts what is there.
#pragma once

#if GRAPHPROBE_X86
#include <xmmintrin.h>
#endif

namespace graphprobe {

class WithSubnormals {
#if GRAPHPROBE_X86
  public:
    WithSubnormals() : before_(_mm_getcsr()) {
        if (before_ & flushing) _mm_setcsr(before_ & ~flushing);
    }
    ~WithSubnormals() {
        if (before_ & flushing) _mm_setcsr(before_);
    }

  private:
    static constexpr unsigned flushing = 0x8040;  // FTZ and DAZ
    unsigned before_;
#else
  public:
    WithSubnormals() {}
    ~WithSubnormals() {}
#endif
};

}  // namespace graphprobe
