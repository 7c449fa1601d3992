// The Python module graphprobe.numerics._native. It keeps to the limited API, so one file serves every CPython from 3.11.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cmath>
#include <new>

#include "pair.h"
#include "stats.h"

namespace {

using namespace graphprobe;

constexpr int max_dims = 64;
constexpr int64_t long_bytes = 64 * 1024;  // from here on other Python threads may run meanwhile

PyObject* number_or_none(bool some, double value) {
    if (some) return PyFloat_FromDouble(value);
    return Py_NewRef(Py_None);
}

bool read_sequence(PyObject* sequence, int64_t* out, int dims) {
    for (int d = 0; d < dims; ++d) {
        PyObject* item = PyTuple_GetItem(sequence, d);
        if (!item) return false;
        out[d] = PyLong_AsLongLong(item);
        if (out[d] == -1 && PyErr_Occurred()) return false;
    }
    return true;
}

// Runs `call` without the lock of the interpreter; what it throws is thrown again with it.
template <class Call>
void unlocked(Call call) {
    PyThreadState* state = PyEval_SaveThread();
    try {
        call();
    } catch (...) {
        PyEval_RestoreThread(state);
        throw;
    }
    PyEval_RestoreThread(state);
}

// stats(result_type, address, kind, shape, strides, threads, table_address) -> result_type
PyObject* py_stats(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 7) return PyErr_Format(PyExc_TypeError, "stats takes 7 arguments, not %zd", count);
    const auto address = static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(args[1]));
    const long kind = PyLong_AsLong(args[2]);
    const long threads = PyLong_AsLong(args[5]);
    const auto table = static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(args[6]));
    if (PyErr_Occurred()) return nullptr;
    if (kind < 0 || kind >= kind_count) return PyErr_Format(PyExc_ValueError, "no kind %ld", kind);
    int64_t sizes[max_dims], strides[max_dims];
    int64_t items = 1;
    int dims = 1;
    const bool strided = args[4] != Py_None;
    if (PyTuple_Check(args[3])) {
        const Py_ssize_t length = PyTuple_Size(args[3]);
        if (length > max_dims) return PyErr_Format(PyExc_ValueError, "%zd dimensions; at most %d", length, max_dims);
        dims = static_cast<int>(length);
        if (!read_sequence(args[3], sizes, dims)) return nullptr;
    } else {
        sizes[0] = PyLong_AsLongLong(args[3]);  // a number of items, contiguous
        if (sizes[0] == -1 && PyErr_Occurred()) return nullptr;
    }
    if (strided && (!PyTuple_Check(args[4]) || PyTuple_Size(args[4]) != dims || !read_sequence(args[4], strides, dims))) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "shape and strides are tuples of one length");
        return nullptr;
    }
    for (int d = 0; d < dims; ++d) {
        if (sizes[d] < 0) return PyErr_Format(PyExc_ValueError, "negative size");
        items *= sizes[d];
    }
    if (items && !address) return PyErr_Format(PyExc_ValueError, "address 0");
    if (kind >= static_cast<long>(Kind::table) && !table) return PyErr_Format(PyExc_ValueError, "no table of values");

    Result result;
    const auto call = [&] {
        result = stats(reinterpret_cast<const void*>(address), static_cast<Kind>(kind),
                       reinterpret_cast<const double*>(table), dims, sizes, strided ? strides : nullptr,
                       static_cast<int>(threads));
    };
    try {
        if (items * item_size(static_cast<Kind>(kind)) >= long_bytes) {
            unlocked(call);
        } else {
            call();
        }
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    }

    const Partial& found = result.partial;
    const bool some = found.finite > 0;
    const double n = static_cast<double>(found.finite), deviation = found.deviation > 0 ? found.deviation : 0;
    char digest[16];
    for (int i = 0; i < 16; ++i) digest[i] = "0123456789abcdef"[(result.digest >> (60 - 4 * i)) & 15];
    PyObject* fields[11] = {
        PyLong_FromLongLong(result.count),
        number_or_none(some, found.min),
        number_or_none(some, found.max),
        number_or_none(some, found.sum / n * result.unscale),
        number_or_none(some, std::sqrt(deviation / n) * result.unscale),
        number_or_none(some, std::sqrt(found.sum_squares) * result.unscale),
        PyLong_FromLongLong(found.nan),
        PyLong_FromLongLong(found.positive_inf),
        PyLong_FromLongLong(found.negative_inf),
        PyLong_FromLongLong(found.zeros),
        PyUnicode_FromStringAndSize(digest, 16),
    };
    PyObject* tuple = PyTuple_New(11);
    bool complete = tuple != nullptr;
    for (int i = 0; i < 11; ++i) {
        complete = complete && fields[i];
        if (tuple) {
            PyTuple_SetItem(tuple, i, fields[i]);  // takes the reference, null or not
        } else {
            Py_XDECREF(fields[i]);
        }
    }
    PyObject* made = complete ? PyObject_Call(args[0], tuple, nullptr) : nullptr;
    Py_XDECREF(tuple);
    return made;
}

bool read_side(PyObject* const* args, double scale, bool empty, PairSide& side) {
    const auto address = static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(args[0]));
    const long kind = PyLong_AsLong(args[1]);
    const auto table = static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(args[2]));
    if (PyErr_Occurred()) return false;
    const bool complex = kind == static_cast<long>(Kind::c32) || kind == static_cast<long>(Kind::c64) ||
                         kind == static_cast<long>(Kind::c128);
    if (kind < 0 || kind >= kind_count || complex) {
        PyErr_Format(PyExc_ValueError, "no kind %ld of elements", kind);
    } else if (!empty && !address) {
        PyErr_SetString(PyExc_ValueError, "address 0");
    } else if (kind >= static_cast<long>(Kind::table) && !table) {
        PyErr_SetString(PyExc_ValueError, "no table of values");
    } else {
        side = {reinterpret_cast<const char*>(address), static_cast<Kind>(kind), reinterpret_cast<const double*>(table), scale};
        return true;
    }
    return false;
}

PyObject* pair_tuple(const PairPart& found) {
    const PairSums& sums = found.sums;
    const int64_t* c = found.classes;
    return Py_BuildValue(
        "(N L (LLLLLLLLLLLLLLLL) L dddd dL dL LLL d d dL L dddd dddd)", PyBool_FromLong(found.bits_equal), found.unequal, c[0],
        c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10], c[11], c[12], c[13], c[14], c[15], found.first_mismatch,
        sums.dot, sums.squares_a, sums.squares_b, sums.errors, found.absolute.value, found.absolute.index,
        found.relative.value, found.relative.index, found.zero_reference, found.within_1, found.within_5, found.halves,
        sums.z, found.z.value, found.z.index, found.above, found.min_a, found.max_a, sums.sum_a + sums.sum_a_alone,
        sums.squares_a + sums.squares_a_alone, found.min_b, found.max_b, sums.sum_b + sums.sum_b_alone,
        sums.squares_b + sums.squares_b_alone);
}

// pair(candidate address, kind, table, reference address, kind, table, count, threads, smallest normal, unit roundoff,
// floor, limit, candidate scale, reference scale) -> the fields of graphprobe.numerics.pair.Raw
PyObject* py_pair(PyObject*, PyObject* const* args, Py_ssize_t given) {
    if (given != 14) return PyErr_Format(PyExc_TypeError, "pair takes 14 arguments, not %zd", given);
    const long long count = PyLong_AsLongLong(args[6]);
    const long threads = PyLong_AsLong(args[7]);
    double scalars[6];
    for (int i = 0; i < 6; ++i) scalars[i] = PyFloat_AsDouble(args[8 + i]);
    if (PyErr_Occurred()) return nullptr;
    if (count < 0) return PyErr_Format(PyExc_ValueError, "negative count");
    PairTask task;
    if (!read_side(args, scalars[4], count == 0, task.a) || !read_side(args + 3, scalars[5], count == 0, task.b)) return nullptr;
    if ((task.a.kind == Kind::table2) != (task.b.kind == Kind::table2) || (task.a.kind == Kind::table2 && count % 2))
        return PyErr_Format(PyExc_ValueError, "packed elements come in twos, on both sides");
    task.count = static_cast<uint64_t>(count);
    task.smallest_normal = scalars[0];
    task.unit_roundoff = scalars[1];
    task.floor = scalars[2];
    task.limit = scalars[3];
    PairPart found;
    const auto call = [&] { found = compare_pair(task, static_cast<int>(threads)); };
    try {
        count * 4 >= long_bytes ? unlocked(call) : call();
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    }
    return pair_tuple(found);
}

PyObject* py_instruction_set(PyObject*, PyObject*) { return PyUnicode_FromString(instruction_set()); }

PyObject* py_instruction_sets(PyObject*, PyObject*) {
    Py_ssize_t count = 0;
    while (instruction_set_at(static_cast<size_t>(count))) ++count;
    PyObject* names = PyTuple_New(count);
    for (Py_ssize_t i = 0; names && i < count; ++i) {
        PyObject* name = PyUnicode_FromString(instruction_set_at(static_cast<size_t>(i)));
        if (!name) {
            Py_DECREF(names);
            return nullptr;
        }
        PyTuple_SetItem(names, i, name);  // takes the reference
    }
    return names;
}

PyObject* py_set_instruction_set(PyObject*, PyObject* name) {
    PyObject* bytes = PyUnicode_AsASCIIString(name);
    if (!bytes) return nullptr;
    const bool done = set_instruction_set(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    return PyBool_FromLong(done);
}

PyMethodDef methods[] = {
    {"stats", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_stats)), METH_FASTCALL,
     "stats(result_type, address, kind, shape, strides, threads, table_address)"},
    {"pair", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_pair)), METH_FASTCALL,
     "pair(address, kind, table, address, kind, table, count, threads, smallest_normal, unit_roundoff, floor, limit, scale, scale)"},
    {"instruction_set", py_instruction_set, METH_NOARGS, "Name of the loops in use."},
    {"instruction_sets", py_instruction_sets, METH_NOARGS, "Names of all loops, whatever this processor has."},
    {"set_instruction_set", py_set_instruction_set, METH_O, "Choose other loops; False if this processor lacks them."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "One-pass statistics, digests and comparisons.", -1, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
    make_block_keys();
    PyObject* module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "VERSION", GRAPHPROBE_NATIVE_VERSION) < 0) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
