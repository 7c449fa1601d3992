// From strided memory to logical (row-major) order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace graphprobe {

// `rows` rows of `n` items; distances in bytes.
struct Block {
    const char* from;
    int64_t rows, row_stride, n, stride;
};

// Writes the rows of a block to `to`, to + pitch and so on. It may spoil up to `gather_slack` bytes after a row, which
// is why rows are written in their order, and why `to` needs so much room after the last.
using BlockFunction = void (*)(int64_t item, char* to, int64_t pitch, const Block&);
constexpr int64_t gather_slack = 64;

namespace baseline { void copy_block(int64_t, char*, int64_t, const Block&); }
namespace avx2 { void copy_block(int64_t, char*, int64_t, const Block&); }
namespace avx512 { void copy_block(int64_t, char*, int64_t, const Block&); }

// A tensor without dimensions of one item, neighbours merged where the memory allows it, and how to read it.
class Layout {
  public:
    Layout(int dims, const int64_t* sizes, const int64_t* strides, int64_t item);

    bool contiguous() const { return sizes_.empty() || (sizes_.size() == 1 && strides_[0] == item_); }

    // How many items it is worth to read in one go, in which what lies together in memory is read together; 0 if any
    // number is as good as another.
    int64_t stretch() const { return near_ < 0 ? 0 : 4 * panel_rows_ * row_; }

  private:
    friend class Reader;
    void read_panel(BlockFunction, const char* base, int64_t first_row, int64_t end_row, char* to) const;
    void read_runs(BlockFunction, const char* base, int64_t first, int64_t n, char* to) const;

    std::vector<int64_t> sizes_, strides_;  // strides in bytes
    int64_t item_;
    int near_ = -1;           // the dimension whose neighbours lie closer than those of the last one, if there is one
    int64_t row_ = 1;         // a row: the items of one step of that dimension, in logical order
    int64_t panel_rows_ = 0;  // how many of them are brought into order together
};

// The bytes first..end-1 of a tensor in logical order, piece by piece.
class Reader {
  public:
    Reader(const Layout&, BlockFunction, const char* base, uint64_t first, uint64_t end);

    // The next `bytes` bytes, whole items and at most `most_bytes`; they stay until the next call.
    const char* take(size_t bytes);

    static constexpr size_t most_bytes = 32 * 1024;

  private:
    const Layout& layout_;
    const BlockFunction copy_;
    const char* const base_;
    uint64_t at_;
    int64_t row_ = 0, end_row_ = 0;
    char* room_;  // where a panel goes; there is room for `most_bytes` before it
    char* next_ = nullptr;
    size_t left_ = 0;  // of the last panel
};

}  // namespace graphprobe
