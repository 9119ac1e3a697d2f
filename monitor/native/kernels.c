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

#define MOST_ARRAYS 16

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

/* ---- module */

#define KERNEL(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    KERNEL(factorise_lower),
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
