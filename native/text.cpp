#include "text.h"

#include <charconv>
#include <cmath>
#include <string>

namespace graphprobe {
namespace {

// Writes the shortest text that reads back as `value`, as Python's repr has it; false with an exception set.
bool put_float(double value, std::string& out) {
#if defined(__cpp_lib_to_chars)
    if (std::isfinite(value)) {
        // The digits are the same; Python writes exponents from -4 to 15 as places of the point, as in 0.0001.
        char text[32];
        const char* end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
        const char* at = text;
        if (*at == '-') out += *at++;
        const char* e = at;
        while (*e != 'e') ++e;
        int exponent = 0;
        for (const char* digit = e + 2; digit != end; ++digit) exponent = 10 * exponent + (*digit - '0');
        if (e[1] == '-') exponent = -exponent;
        if (exponent < -4 || exponent >= 16) {
            out.append(at, end);
            return true;
        }
        const char* rest = e - at > 1 ? at + 2 : e;  // the digits after the first and the point
        const int after = static_cast<int>(e - rest);
        if (exponent < 0) {
            out.append("0.0000", static_cast<size_t>(1 - exponent));
            out += *at;
            out.append(rest, e);
        } else if (after <= exponent) {
            out += *at;
            out.append(rest, e);
            out.append(static_cast<size_t>(exponent - after), '0');
            out += ".0";
        } else {
            out += *at;
            out.append(rest, static_cast<size_t>(exponent));
            out += '.';
            out.append(rest + exponent, e);
        }
        return true;
    }
#endif
    char* text = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
    if (!text) return false;
    out += text;
    PyMem_Free(text);
    return true;
}

bool put_number(PyObject* item, std::string& out) {
    if (item == Py_None) return true;
    if (PyFloat_CheckExact(item)) return put_float(PyFloat_AsDouble(item), out);
    const long long whole = PyLong_AsLongLong(item);
    if (whole == -1 && PyErr_Occurred()) return false;
    out += std::to_string(whole);
    return true;
}

bool put_bytes(PyObject* bytes, std::string& out) {
    char* data;
    Py_ssize_t size;
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &size) < 0) return false;
    out.append(data, static_cast<size_t>(size));
    return true;
}

bool put_row(PyObject* execution, PyObject* form, PyObject* stats, PyObject* columns, PyObject* digest, std::string& out) {
    if (!PyTuple_Check(form)) {
        PyErr_SetString(PyExc_TypeError, "a form is a tuple of three texts");
        return false;
    }
    if (!put_bytes(PyTuple_GetItem(form, 0), out)) return false;
    out += ',';
    if (!put_bytes(execution, out)) return false;
    out += ',';
    if (!put_bytes(PyTuple_GetItem(form, 1), out)) return false;
    const Py_ssize_t count = PyTuple_Size(columns);
    for (Py_ssize_t i = 0; i < count; ++i) {
        out += ',';
        PyObject* name = PyTuple_GetItem(columns, i);
        if (name == Py_None) continue;
        PyObject* value = PyObject_GetAttr(stats, name);
        const bool done = value && put_number(value, out);
        Py_XDECREF(value);
        if (!done) return false;
    }
    out += ',';
    if (!put_bytes(PyTuple_GetItem(form, 2), out)) return false;
    out += ',';
    PyObject* last = PyObject_GetAttr(stats, digest);
    Py_ssize_t size = 0;
    const char* text = last ? PyUnicode_AsUTF8AndSize(last, &size) : nullptr;
    if (text) out.append(text, static_cast<size_t>(size)).append("\r\n");
    Py_XDECREF(last);
    return text != nullptr;
}

}  // namespace

PyObject* py_numbers_text(PyObject*, PyObject* numbers) {
    if (!PyTuple_Check(numbers)) return PyErr_Format(PyExc_TypeError, "numbers_text takes a tuple");
    std::string out;
    const Py_ssize_t count = PyTuple_Size(numbers);
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (i) out += ',';
        if (!put_number(PyTuple_GetItem(numbers, i), out)) return nullptr;
    }
    return PyUnicode_FromStringAndSize(out.data(), static_cast<Py_ssize_t>(out.size()));
}

PyObject* py_stats_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 4) return PyErr_Format(PyExc_TypeError, "stats_rows takes 4 arguments, not %zd", count);
    PyObject *forms = args[1], *stats = args[2], *columns = args[3];
    if (!PyTuple_Check(forms) || !PyTuple_Check(stats) || !PyTuple_Check(columns))
        return PyErr_Format(PyExc_TypeError, "forms, statistics and columns are tuples");
    const Py_ssize_t rows = PyTuple_Size(forms);
    if (PyTuple_Size(stats) != rows)
        return PyErr_Format(PyExc_ValueError, "statistics of %zd tensors for %zd forms", PyTuple_Size(stats), rows);
    PyObject* digest = PyUnicode_InternFromString("digest");
    if (!digest) return nullptr;
    std::string out;
    bool done = true;
    for (Py_ssize_t i = 0; done && i < rows; ++i)
        done = put_row(args[0], PyTuple_GetItem(forms, i), PyTuple_GetItem(stats, i), columns, digest, out);
    Py_DECREF(digest);
    return done ? PyBytes_FromStringAndSize(out.data(), static_cast<Py_ssize_t>(out.size())) : nullptr;
}

}  // namespace graphprobe
