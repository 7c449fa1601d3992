#include "gather.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace graphprobe {
namespace {

// Of a panel as many rows are wanted as lie in so many bytes of memory: a few cache lines side by side.
constexpr int64_t near_bytes = 256;

// A panel of so many bytes stays in the second-level cache. Where that is less than a cache line's rows, it may be
// larger.
constexpr int64_t usual_panel = 512 * 1024, largest_panel = 4 * 1024 * 1024;

// What is in the second-level cache itself is read a line at a time as fast, and then a panel may be small.
constexpr int64_t small_tensor = 1024 * 1024;

// Kept by its thread: to allocate so much each time would cost page faults.
char* buffer_of(size_t bytes) {
    struct Free {
        void operator()(char* memory) const { ::operator delete(memory, std::align_val_t(64)); }
    };
    thread_local std::unique_ptr<char, Free> buffer;
    thread_local size_t room = 0;
    if (bytes > room) {
        buffer.reset();
        room = 0;
        buffer.reset(static_cast<char*>(::operator new(bytes, std::align_val_t(64))));
        room = bytes;
    }
    return buffer.get();
}

}  // namespace

Layout::Layout(int dims, const int64_t* sizes, const int64_t* strides, int64_t item) : item_(item) {
    for (int d = 0; d < dims; ++d) {
        if (sizes[d] == 1) continue;
        const int64_t bytes = strides[d] * item;
        if (!sizes_.empty() && strides_.back() == bytes * sizes[d]) {
            sizes_.back() *= sizes[d];
            strides_.back() = bytes;
        } else {
            sizes_.push_back(sizes[d]);
            strides_.push_back(bytes);
        }
    }
    const int last = static_cast<int>(sizes_.size()) - 1;
    for (int d = 0; d < last; ++d)
        if (strides_[d] > 0 && strides_[d] < strides_[near_ < 0 ? last : near_]) near_ = d;
    if (near_ < 0) return;
    for (int d = near_ + 1; d <= last; ++d) row_ *= sizes_[d];
    const int64_t row_bytes = row_ * item, line = std::max<int64_t>(64 / strides_[near_], 1);
    if (row_bytes > largest_panel / 4) {  // too long to keep even a few
        near_ = -1;
        return;
    }
    int64_t count = item, rows = std::max<int64_t>(near_bytes / strides_[near_], 1);
    for (int64_t size : sizes_) count *= size;
    const int64_t piece = static_cast<int64_t>(Reader::most_bytes);
    if (count <= small_tensor && line * row_bytes <= piece) rows = line;
    rows = std::max(rows, piece / row_bytes / line * line);
    if (rows * row_bytes > usual_panel) {
        rows = std::max(std::min(line, rows), usual_panel / row_bytes / line * line);
        rows = std::min(rows, largest_panel / row_bytes);
    }
    panel_rows_ = rows;
}

Reader::Reader(const Layout& layout, BlockFunction copy, const char* base, uint64_t first, uint64_t end)
    : layout_(layout), copy_(copy), base_(base), at_(first) {
    if (layout.near_ < 0) {
        room_ = buffer_of(most_bytes + gather_slack);
        return;
    }
    const uint64_t row_bytes = static_cast<uint64_t>(layout.row_ * layout.item_);
    row_ = static_cast<int64_t>(first / row_bytes);
    end_row_ = static_cast<int64_t>((end + row_bytes - 1) / row_bytes);
    const uint64_t rows = static_cast<uint64_t>(std::min(layout.panel_rows_, end_row_ - row_));
    room_ = buffer_of(most_bytes + rows * row_bytes + gather_slack) + most_bytes;
}

const char* Reader::take(size_t bytes) {
    if (layout_.near_ < 0) {
        const int64_t item = layout_.item_, n = static_cast<int64_t>(bytes) / item;
        layout_.read_runs(copy_, base_, static_cast<int64_t>(at_) / item, n, room_);
        at_ += bytes;
        return room_;
    }
    while (left_ < bytes) {
        const uint64_t row_bytes = static_cast<uint64_t>(layout_.row_ * layout_.item_);
        const int64_t end = std::min(row_ + layout_.panel_rows_, end_row_);
        char* begin = room_ - left_;
        if (left_) memmove(begin, next_, left_);
        layout_.read_panel(copy_, base_, row_, end, room_);
        left_ += static_cast<uint64_t>(end - row_) * row_bytes;
        const uint64_t before = next_ ? 0 : at_ - static_cast<uint64_t>(row_) * row_bytes;  // of the first row
        next_ = begin + before;
        left_ -= before;
        row_ = end;
    }
    const char* found = next_;
    next_ += bytes;
    left_ -= bytes;
    return found;
}

void Layout::read_panel(BlockFunction copy, const char* base, int64_t row, int64_t end, char* to) const {
    const int last = static_cast<int>(sizes_.size()) - 1;
    const int64_t pitch = row_ * item_;
    while (row < end) {
        int64_t rest = row;
        const char* at = base;
        for (int d = near_; d >= 0; rest /= sizes_[d], --d) at += rest % sizes_[d] * strides_[d];
        const int64_t rows = std::min(end - row, sizes_[near_] - row % sizes_[near_]);
        Block block = {at, rows, strides_[near_], sizes_[last], strides_[last]};
        for (int64_t part = 0; part < row_ / block.n; ++part) {  // over the dimensions between the two
            int64_t index = part;
            block.from = at;
            for (int d = last - 1; d > near_; index /= sizes_[d], --d) block.from += index % sizes_[d] * strides_[d];
            copy(item_, to + part * block.n * item_, pitch, block);
        }
        to += rows * pitch;
        row += rows;
    }
}

void Layout::read_runs(BlockFunction copy, const char* base, int64_t first, int64_t n, char* to) const {
    const int last = static_cast<int>(sizes_.size()) - 1;
    const int64_t width = sizes_[last], height = last > 0 ? sizes_[last - 1] : 1, pitch = width * item_;
    while (n > 0) {
        int64_t rest = first;
        const char* at = base;
        for (int d = last; d >= 0; rest /= sizes_[d], --d) at += rest % sizes_[d] * strides_[d];
        const int64_t column = first % width;
        Block block = {at, 1, 0, std::min(n, width - column), strides_[last]};
        if (column == 0 && n >= width && last > 0) {
            block.rows = std::min(n / width, height - first / width % height);
            block.row_stride = strides_[last - 1];
        }
        copy(item_, to, pitch, block);
        const int64_t items = block.rows * block.n;
        to += items * item_;
        first += items;
        n -= items;
    }
}

}  // namespace graphprobe
