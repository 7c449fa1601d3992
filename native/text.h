// Numbers and rows of tables as text, for Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace graphprobe {

// numbers_text((float | int | None, ...)) -> what Python's repr makes of each, commas between them; None is empty.
PyObject* py_numbers_text(PyObject*, PyObject* numbers);

// stats_rows(execution, ((before, middle, after), ...), (statistics, ...), (name | None, ...)) -> bytes, which are a row
// for each of the statistics: see graphprobe/store/dump_stats.py.
PyObject* py_stats_rows(PyObject*, PyObject* const* args, Py_ssize_t count);

}  // namespace graphprobe
