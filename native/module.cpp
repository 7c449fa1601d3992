// The Python module graphprobe.numerics._native. It keeps to the limited API, so one file serves every CPython from 3.11.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cmath>
#include <new>

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
            PyThreadState* state = PyEval_SaveThread();
            try {
                call();
            } catch (...) {
                PyEval_RestoreThread(state);
                throw;
            }
            PyEval_RestoreThread(state);
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

PyObject* py_instruction_set(PyObject*, PyObject*) { return PyUnicode_FromString(instruction_set()); }

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
    {"instruction_set", py_instruction_set, METH_NOARGS, "Name of the loops in use."},
    {"set_instruction_set", py_set_instruction_set, METH_O, "Choose other loops; False if this processor lacks them."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "One-pass statistics and digests.", -1, methods, nullptr, nullptr, nullptr, nullptr,
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
