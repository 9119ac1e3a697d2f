/* Kernels of the frame path, in CPython's limited API of 3.11: one build serves 3.11 and all after.
 *
 * Each does what a few lines of NumPy do elsewhere in the house, operation by operation and in the
 * same order, so that every bit is the same: no fused multiply-add (-ffp-contract=off), no -ffast-math.
 * Arrays come through the buffer protocol. Shape, format and layout are checked before anything is
 * read, so that no caller can make a kernel leave its arrays.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef SOURCE
#define SOURCE "unknown"
#endif

/* As frames/space.py has it, MOST_DIMENSIONS: bounds what lies on the stack. */
#define MOST_DIMENSIONS 32

/* ---- arrays */

#define MOST_ARRAYS 24

enum { READ = 0, WRITE = PyBUF_WRITABLE };

/* The arrays of one call; all are given back by `release`, whatever happened between. */
typedef struct {
    Py_buffer views[MOST_ARRAYS];
    int taken;
} Arrays;

static void release(Arrays *arrays)
{
    while (arrays->taken > 0)
        PyBuffer_Release(&arrays->views[--arrays->taken]);
}

/* Takes a C-contiguous array of `dimensions` axes of `format` ('d' float64, 'q' int64, '?' bool).
 *
 * shape    what each axis has to be; -1 takes it as it comes, and is set to it
 * returns  its first element; NULL with ValueError or BufferError set
 */
static void *take(Arrays *arrays, PyObject *object, const char *name, char format, int access,
                  int dimensions, Py_ssize_t *shape)
{
    if (arrays->taken == MOST_ARRAYS) {
        PyErr_SetString(PyExc_SystemError, "a kernel takes too many arrays");
        return NULL;
    }
    Py_buffer *view = &arrays->views[arrays->taken];
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | access) < 0) {
        /* NumPy says ValueError, others BufferError; of what has no buffer at all TypeError. */
        PyErr_Format(PyExc_ValueError, "%s must be a C-contiguous %sarray", name,
                     access == WRITE ? "writable " : "");
        return NULL;
    }
    arrays->taken++;
    /* int64 is 'l' where long has 64 bits. */
    const char *found = view->format == NULL ? "B" : view->format;
    const int fits = found[0] != 0 && found[1] == 0 &&
                     (found[0] == format || (format == 'q' && found[0] == 'l'));
    if (!fits || view->itemsize != (format == '?' ? 1 : 8)) {
        PyErr_Format(PyExc_ValueError, "%s has format '%s' of %zd bytes, not '%c'", name, found,
                     view->itemsize, format);
        return NULL;
    }
    if (view->ndim != dimensions) {
        PyErr_Format(PyExc_ValueError, "%s has %d axes, not %d", name, view->ndim, dimensions);
        return NULL;
    }
    for (int axis = 0; axis < dimensions; axis++) {
        if (shape[axis] == -1)
            shape[axis] = view->shape[axis];
        if (view->shape[axis] != shape[axis]) {
            PyErr_Format(PyExc_ValueError, "%s is %zd long in axis %d, not %zd", name,
                         view->shape[axis], axis, shape[axis]);
            return NULL;
        }
    }
    return view->buf;
}

/* Checks the number of arguments, and 1 <= k <= MOST_DIMENSIONS. */
static int counted(const char *name, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return 0;
}

static int dimensions_fit(Py_ssize_t k)
{
    if (k >= 1 && k <= MOST_DIMENSIONS)
        return 1;
    PyErr_Format(PyExc_ValueError, "%zd dimensions: there must be 1 to %d", k, MOST_DIMENSIONS);
    return 0;
}

/* ---- Cholesky factors, as frames/cholesky.py has them */

/* So many detections side by side, as the processor likes them; each is computed by itself. */
#define LANES 8
#define TRIANGLE(i, j) ((i) * ((i) + 1) / 2 + (j))

typedef double Lanes[LANES];

/* Turns packed lower triangles into their factors, in place.
 *
 * Each entry is diminished by the products of the columns before, in their order, whatever the order
 * of the loops: the bits are those of factorise_lower in NumPy.
 *
 * returns  a bit for each lane whose pivots are regular: p p > singular a
 */
static unsigned factorise(Lanes *restrict a, Py_ssize_t k, double singular)
{
    unsigned regular = (1u << LANES) - 1;
    for (Py_ssize_t i = 0; i < k; i++) {
        double *restrict row = a[TRIANGLE(i, 0)];
        Lanes smallest;
        for (int lane = 0; lane < LANES; lane++)
            smallest[lane] = singular * row[i * LANES + lane];
        for (Py_ssize_t j = 0; j < i; j++) {
            const double *above = a[TRIANGLE(j, 0)];
            Lanes entry;
            memcpy(entry, row + j * LANES, sizeof entry);
            for (Py_ssize_t m = 0; m < j; m++)
                for (int lane = 0; lane < LANES; lane++)
                    entry[lane] -= above[m * LANES + lane] * row[m * LANES + lane];
            for (int lane = 0; lane < LANES; lane++)
                row[j * LANES + lane] = entry[lane] / above[j * LANES + lane];
        }
        Lanes entry;
        memcpy(entry, row + i * LANES, sizeof entry);
        for (Py_ssize_t m = 0; m < i; m++)
            for (int lane = 0; lane < LANES; lane++)
                entry[lane] -= row[m * LANES + lane] * row[m * LANES + lane];
        for (int lane = 0; lane < LANES; lane++) {
            const double pivot = sqrt(entry[lane]);
            row[i * LANES + lane] = pivot;
            regular &= ~((unsigned)!(pivot * pivot > smallest[lane]) << lane);
        }
    }
    return regular;
}

/* factorise_lower(a, singular): a (K, K, N) in place, on and below the diagonal. */
static PyObject *factorise_lower(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    (void)self;
    Arrays arrays = {.taken = 0};
    PyObject *done = NULL;
    if (!counted("factorise_lower", given, 2))
        return NULL;
    const double singular = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t shape[3] = {-1, -1, -1};
    double *a = take(&arrays, args[0], "a", 'd', WRITE, 3, shape);
    if (a == NULL)
        goto end;
    const Py_ssize_t k = shape[0], n = shape[2];
    if (shape[1] != k) {
        PyErr_Format(PyExc_ValueError, "a is %zd by %zd, not square", k, shape[1]);
        goto end;
    }
    if (!dimensions_fit(k))
        goto end;
    Lanes block[TRIANGLE(MOST_DIMENSIONS, 0)];
    for (Py_ssize_t first = 0; first < n; first += LANES) {
        const Py_ssize_t here = n - first < LANES ? n - first : LANES;
        for (Py_ssize_t i = 0; i < k; i++)
            for (Py_ssize_t j = 0; j <= i; j++) {
                double *entry = block[TRIANGLE(i, j)];
                for (int lane = 0; lane < LANES; lane++)
                    entry[lane] = lane < here ? a[(i * k + j) * n + first + lane] : i == j;
            }
        const unsigned regular = factorise(block, k, singular);
        for (Py_ssize_t i = 0; i < k; i++)
            for (Py_ssize_t j = 0; j <= i; j++)
                memcpy(a + (i * k + j) * n + first, block[TRIANGLE(i, j)], here * sizeof(double));
        for (Py_ssize_t lane = 0; lane < here; lane++)
            if (!(regular >> lane & 1))
                a[(k * k - 1) * n + first + lane] = NAN;
    }
    done = Py_NewRef(Py_None);
end:
    release(&arrays);
    return done;
}

/* ---- wire/records.py */

#define MOST_FIELDS (MOST_ARRAYS - 4)

/* Takes an array of any format that is C-contiguous and has so many bytes. */
static char *take_bytes(Arrays *arrays, PyObject *object, const char *name, int access,
                        Py_ssize_t size)
{
    if (arrays->taken == MOST_ARRAYS) {
        PyErr_SetString(PyExc_SystemError, "a kernel takes too many arrays");
        return NULL;
    }
    Py_buffer *view = &arrays->views[arrays->taken];
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | access) < 0) {
        PyErr_Format(PyExc_ValueError, "%s must be a C-contiguous %sarray", name,
                     access == WRITE ? "writable " : "");
        return NULL;
    }
    arrays->taken++;
    if (size != -1 && view->len != size) {
        PyErr_Format(PyExc_ValueError, "%s has %zd bytes, not %zd", name, view->len, size);
        return NULL;
    }
    return view->buf;
}

typedef struct {
    int count;
    int64_t offset[MOST_FIELDS], size[MOST_FIELDS];
    char *values[MOST_FIELDS];
} Fields;

/* Takes the values of fields, each of n records: a list of arrays. `places` (fields, 2) has offset
 * and size of each in a record of `length` bytes. */
static int take_fields(Arrays *arrays, Fields *fields, PyObject *places, PyObject *columns,
                       int access, Py_ssize_t n, Py_ssize_t length)
{
    Py_ssize_t shape[2] = {-1, 2};
    const int64_t *place = take(arrays, places, "places", 'q', READ, 2, shape);
    if (place == NULL)
        return 0;
    if (!PyList_Check(columns) || PyList_Size(columns) != shape[0] || shape[0] > MOST_FIELDS) {
        PyErr_Format(PyExc_ValueError, "columns must be a list of one array a place, at most %d",
                     MOST_FIELDS);
        return 0;
    }
    fields->count = (int)shape[0];
    for (int f = 0; f < fields->count; f++) {
        const int64_t offset = place[2 * f], size = place[2 * f + 1];
        if (offset < 0 || size < 0 || offset > length || size > length - offset) {
            PyErr_Format(PyExc_ValueError, "place %d does not lie in %zd bytes", f, length);
            return 0;
        }
        fields->offset[f] = offset;
        fields->size[f] = size;
        fields->values[f] = take_bytes(arrays, PyList_GetItem(columns, f), "a column", access,
                                       n * (Py_ssize_t)size);
        if (fields->values[f] == NULL)
            return 0;
    }
    return 1;
}

/* read_records(data, start, mask, values, places, columns): copies the fields of records, one behind
 * the other from `start` to the end of the data, into columns. False where the bytes of one that the
 * mask takes are not the values; what is in the columns then means nothing. */
static PyObject *read_records(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    (void)self;
    Arrays arrays = {.taken = 0};
    PyObject *done = NULL;
    if (!counted("read_records", given, 6))
        return NULL;
    const Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred())
        return NULL;
    const char *data = take_bytes(&arrays, args[0], "data", READ, -1);
    if (data == NULL)
        goto end;
    const Py_ssize_t all = arrays.views[0].len;
    const char *mask = take_bytes(&arrays, args[2], "mask", READ, -1);
    if (mask == NULL)
        goto end;
    const Py_ssize_t length = arrays.views[1].len;
    const char *values = take_bytes(&arrays, args[3], "values", READ, length);
    if (values == NULL)
        goto end;
    if (start < 0 || start > all || length == 0 || (all - start) % length) {
        PyErr_Format(PyExc_ValueError, "%zd bytes from %zd are no records of %zd", all, start, length);
        goto end;
    }
    const Py_ssize_t n = (all - start) / length;
    Fields fields;
    if (!take_fields(&arrays, &fields, args[4], args[5], WRITE, n, length))
        goto end;
    uint64_t wrong = 0;
    for (Py_ssize_t row = 0; row < n && !wrong; row++) {
        const char *record = data + start + row * length;
        Py_ssize_t at = 0;
        for (; at + 8 <= length; at += 8) {
            uint64_t found, taken, wanted;
            memcpy(&found, record + at, 8);
            memcpy(&taken, mask + at, 8);
            memcpy(&wanted, values + at, 8);
            wrong |= (found & taken) ^ wanted;
        }
        for (; at < length; at++)
            wrong |= (unsigned char)((record[at] & mask[at]) ^ values[at]);
        for (int f = 0; f < fields.count; f++)
            memcpy(fields.values[f] + row * fields.size[f], record + fields.offset[f],
                   (size_t)fields.size[f]);
    }
    done = PyBool_FromLong(!wrong);
end:
    release(&arrays);
    return done;
}

/* write_records(record, places, columns, n): bytes of n records, each as the one that is given but for
 * the values of its fields. */
static PyObject *write_records(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    (void)self;
    Arrays arrays = {.taken = 0};
    PyObject *done = NULL;
    if (!counted("write_records", given, 4))
        return NULL;
    const Py_ssize_t n = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred())
        return NULL;
    const char *record = take_bytes(&arrays, args[0], "record", READ, -1);
    if (record == NULL)
        goto end;
    const Py_ssize_t length = arrays.views[0].len;
    if (n < 0 || (length && n > PY_SSIZE_T_MAX / length)) {
        PyErr_Format(PyExc_ValueError, "%zd records of %zd bytes", n, length);
        goto end;
    }
    Fields fields;
    if (!take_fields(&arrays, &fields, args[1], args[2], READ, n, length))
        goto end;
    PyObject *written = PyBytes_FromStringAndSize(NULL, n * length);
    char *out = written == NULL ? NULL : PyBytes_AsString(written);
    if (out == NULL)
        goto end;
    for (Py_ssize_t row = 0; row < n; row++, out += length) {
        memcpy(out, record, (size_t)length);
        for (int f = 0; f < fields.count; f++)
            memcpy(out + fields.offset[f], fields.values[f] + row * fields.size[f],
                   (size_t)fields.size[f]);
    }
    done = written;
end:
    release(&arrays);
    return done;
}

/* ---- module */

#define KERNEL(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    KERNEL(factorise_lower),
    KERNEL(read_records),
    KERNEL(write_records),
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)(intptr_t)start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    return PyModuleDef_Init(&definition);
}
