/* Kernels of the frame path, in CPython's limited API of 3.11: one build serves 3.11 and all after.
 * Each does what a few lines of NumPy do elsewhere in the house, operation by operation and in the
 * same order, so that every bit is the same: no fused multiply-add (-ffp-contract=off), no -ffast-math.
 * Arrays come through the buffer protocol; each kernel checks shapes and indices before it reads. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

/* As frames/space.py has it, MOST_DIMENSIONS: bounds what lies on the stack. A state has velocities. */
#define MOST_DIMENSIONS 32
#define MOST_STATES (2 * MOST_DIMENSIONS)

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

/* Takes a C-contiguous array of `dimensions` axes of `format` ('d' float64, 'q' int64, 0 any); an axis of
 * the shape that is -1 is set to what comes. Returns its first element, or NULL with a ValueError. */
static void *take(Arrays *arrays, PyObject *object, const char *name, char format, int access,
                  int dimensions, Py_ssize_t *shape)
{
    Py_buffer *view = &arrays->views[arrays->taken];
    if (arrays->taken == MOST_ARRAYS)
        return PyErr_Format(PyExc_SystemError, "a kernel takes too many arrays");
    /* NumPy says ValueError, others BufferError; of what has no buffer at all TypeError. */
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | access) < 0)
        return PyErr_Format(PyExc_ValueError, "%s must be a C-contiguous %sarray", name,
                            access == WRITE ? "writable " : "");
    arrays->taken++;
    /* int64 is 'l' where long has 64 bits. */
    const char *found = view->format == NULL ? "B" : view->format;
    const int fits = found[0] != 0 && found[1] == 0 && view->itemsize == 8 &&
                     (found[0] == format || (format == 'q' && found[0] == 'l'));
    if (format && (!fits || view->ndim != dimensions))
        return PyErr_Format(PyExc_ValueError, "%s has %d axes of format '%s', not %d of '%c'", name,
                            view->ndim, found, dimensions, format);
    for (int axis = 0; axis < dimensions; axis++) {
        if (shape[axis] == -1)
            shape[axis] = view->shape[axis];
        if (view->shape[axis] != shape[axis])
            return PyErr_Format(PyExc_ValueError, "%s is %zd long in axis %d, not %zd", name,
                                view->shape[axis], axis, shape[axis]);
    }
    return view->buf;
}

/* Takes an array of any kind that has so many bytes; -1: any, and is set to it. */
static char *take_bytes(Arrays *arrays, PyObject *object, const char *name, int access, Py_ssize_t *size)
{
    char *found = take(arrays, object, name, 0, access, 0, NULL);
    const Py_ssize_t bytes = found == NULL ? 0 : arrays->views[arrays->taken - 1].len;
    if (*size == -1)
        *size = bytes;
    if (found == NULL || bytes == *size)
        return found;
    return (char *)PyErr_Format(PyExc_ValueError, "%s has %zd bytes, not %zd", name, bytes, *size);
}

/* In a kernel: goes to its end without a result. TAKE takes an argument into the variable of its name. */
#define CHECK(condition) if (!(condition)) goto end
#define TAKE(name, argument, format, access, axes, shape) \
    CHECK((name = take(&arrays, argument, #name, format, access, axes, shape)) != NULL)

/* Reads so many numbers; returns whether all were some. */
static int numbers(PyObject *const *args, Py_ssize_t n, double *values)
{
    for (Py_ssize_t i = 0; i < n; i++)
        values[i] = PyFloat_AsDouble(args[i]);
    return !PyErr_Occurred();
}

/* Checks that something holds; else sets a ValueError. */
#define HOLDS(condition, ...) ((condition) || PyErr_Format(PyExc_ValueError, __VA_ARGS__) != NULL)

/* Checks that each of n places lies below an end. */
static int within(const char *name, const int64_t *places, Py_ssize_t n, Py_ssize_t end)
{
    int holds = 1;
    for (Py_ssize_t i = 0; i < n && holds; i++)
        holds = HOLDS(places[i] >= 0 && places[i] < end, "%s %lld is not below %zd", name,
                      (long long)places[i], end);
    return holds;
}

static int dimensions_fit(Py_ssize_t k)
{
    return HOLDS(k >= 1 && k <= MOST_DIMENSIONS, "%zd dimensions: must be 1 to %d", k, MOST_DIMENSIONS);
}

/* Between these is what a kernel does with its arguments: what it returns is `done`. */
#define KERNEL(name, wanted)                                                                    \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t given)              \
    {                                                                                           \
        Arrays arrays = {.taken = 0};                                                           \
        PyObject *done = NULL;                                                                  \
        (void)self;                                                                             \
        CHECK(HOLDS(given == wanted, #name " takes %d arguments, not %zd", wanted, given));
#define END end: release(&arrays); return done; }

/* ---- Cholesky factors, as frames/cholesky.py has them */

/* So many detections side by side, as the processor likes them; each is computed by itself. */
#define LANES 8
#define TRIANGLE(i, j) ((i) * ((i) + 1) / 2 + (j))

typedef double Lanes[LANES];

#define EACH_LANE for (int lane = 0; lane < LANES; lane++)

/* Turns packed lower triangles into their factors, in place; each entry is diminished by the products
 * of the columns before, in their order. Returns a bit for each lane with p p > singular a. */
static unsigned factorise(Lanes *restrict a, Py_ssize_t k, double singular)
{
    int64_t irregular[LANES] = {0}; /* as wide as a value, so that lanes stay side by side */
    for (Py_ssize_t i = 0; i < k; i++) {
        Lanes *restrict row = a + TRIANGLE(i, 0);
        Lanes entry, smallest;
        EACH_LANE smallest[lane] = singular * row[i][lane];
        for (Py_ssize_t j = 0; j <= i; j++) {
            Lanes *above = a + TRIANGLE(j, 0);
            memcpy(entry, row[j], sizeof entry);
            for (Py_ssize_t m = 0; m < j; m++)
                EACH_LANE entry[lane] -= above[m][lane] * row[m][lane];
            if (j < i)
                EACH_LANE row[j][lane] = entry[lane] / above[j][lane];
        }
        EACH_LANE row[i][lane] = sqrt(entry[lane]);
        EACH_LANE irregular[lane] |= !(row[i][lane] * row[i][lane] > smallest[lane]);
    }
    unsigned regular = 0;
    EACH_LANE regular |= (unsigned)!irregular[lane] << lane;
    return regular;
}

/* factorise_lower(a, singular): a (K, K, N) in place, on and below the diagonal. */
KERNEL(factorise_lower, 2)
    double singular, *a;
    CHECK(numbers(args + 1, 1, &singular));
    Py_ssize_t shape[3] = {-1, -1, -1};
    TAKE(a, args[0], 'd', WRITE, 3, shape);
    const Py_ssize_t k = shape[0], n = shape[2];
    CHECK(HOLDS(shape[1] == k, "a is %zd by %zd, not square", k, shape[1]));
    CHECK(dimensions_fit(k));
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
END

/* ---- frames/detections.py */

/* Writes the diagonals of Cholesky factors, (n, K), in an order of dimensions (K,); returns if all are. */
static int find_pivots(const double *packed, Py_ssize_t form, Py_ssize_t n, Py_ssize_t k,
                       const int64_t *order, double singular, double *pivot)
{
    Lanes block[TRIANGLE(MOST_DIMENSIONS, 0)];
    const int alone = form != TRIANGLE(k, 0);
    int fits = 1;
    for (; n > 0; n -= LANES, packed += LANES * form, pivot += LANES * k) {
        for (Py_ssize_t i = 0; i < k; i++)
            for (Py_ssize_t j = alone ? i : 0; j <= i; j++) {
                const int64_t p = order[i], q = order[j];
                const int64_t place = alone ? p : p > q ? TRIANGLE(p, q) : TRIANGLE(q, p);
                /* Lanes that are left over compute the first detection once more. */
                EACH_LANE block[TRIANGLE(i, j)][lane] = packed[(lane < n ? lane * form : 0) + place];
            }
        if (!alone)
            fits &= factorise(block, k, singular) == (1u << LANES) - 1;
        for (Py_ssize_t i = 0; i < k; i++)
            for (Py_ssize_t lane = 0; lane < LANES && lane < n; lane++) {
                const double found = block[TRIANGLE(i, i)][lane];
                pivot[lane * k + i] = alone ? sqrt(found) : found;
                fits &= found > 0.0;
            }
    }
    return fits;
}

/* usable(class_index (n,), mean (n, K), packed, order (K,), pivot (n, K), classes, largest_mean, least,
 *        most, singular); packed: variances (n, K) or lower triangles (n, K (K + 1) / 2).
 * Tells whether classes, means, variances and factors of a frame all pass, with the pivots if so. */
KERNEL(usable, 10)
    double told[5], *mean, *packed, *pivot;
    int64_t *class_index, *order;
    Py_ssize_t shape[2] = {-1, -1}, form[2] = {0, -1};
    CHECK(numbers(args + 5, 5, told));
    TAKE(mean, args[1], 'd', READ, 2, shape);
    const Py_ssize_t n = form[0] = shape[0], k = shape[1];
    TAKE(class_index, args[0], 'q', READ, 1, shape);
    TAKE(order, args[3], 'q', READ, 1, shape + 1);
    TAKE(pivot, args[4], 'd', WRITE, 2, shape);
    TAKE(packed, args[2], 'd', READ, 2, form);
    CHECK(dimensions_fit(k) && within("order", order, k, k));
    CHECK(HOLDS(form[1] == k || form[1] == TRIANGLE(k, 0), "packed has %zd values a row", form[1]));
    const double classes = told[0], largest_mean = told[1], least = told[2], most = told[3], singular = told[4];
    /* As wide as a value, so that several are compared at once. NaN is beyond any bound. */
    int64_t beyond = 0;
    for (Py_ssize_t i = 0; i < n * k; i++)
        beyond |= !(fabs(mean[i]) <= largest_mean);
    for (Py_ssize_t row = 0; row < n; row++) {
        beyond |= !(class_index[row] >= 0 && (double)class_index[row] < classes);
        for (Py_ssize_t i = 0; i < k; i++) {
            const double variance = packed[row * form[1] + (form[1] == k ? i : TRIANGLE(i, i))];
            beyond |= !(variance >= least && variance <= most);
        }
    }
    done = PyBool_FromLong(!beyond && find_pivots(packed, form[1], n, k, order, singular, pivot));
END

/* ---- wire/records.py */

#define MOST_FIELDS (MOST_ARRAYS - 4)

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
    if (!HOLDS(PyList_Check(columns) && PyList_Size(columns) == shape[0] && shape[0] <= MOST_FIELDS,
               "columns must be a list of one array a place, at most %d", MOST_FIELDS))
        return 0;
    fields->count = (int)shape[0];
    for (int f = 0; f < fields->count; f++) {
        const int64_t offset = fields->offset[f] = place[2 * f], size = fields->size[f] = place[2 * f + 1];
        if (!HOLDS(offset >= 0 && size >= 0 && offset <= length && size <= length - offset,
                   "place %d does not lie in %zd bytes", f, length))
            return 0;
        Py_ssize_t bytes = n * (Py_ssize_t)size;
        PyObject *column = PyList_GetItem(columns, f);
        if ((fields->values[f] = take_bytes(arrays, column, "a column", access, &bytes)) == NULL)
            return 0;
    }
    return 1;
}

/* read_records(data, start, mask, values, places, columns): copies the fields of records, from `start`
 * to the end of the data, into columns. False where the bytes of one at the mask are not the values. */
KERNEL(read_records, 6)
    Py_ssize_t all = -1, length = -1;
    const Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    CHECK(!PyErr_Occurred());
    const char *data = take_bytes(&arrays, args[0], "data", READ, &all);
    const char *mask = data ? take_bytes(&arrays, args[2], "mask", READ, &length) : NULL;
    const char *values = mask ? take_bytes(&arrays, args[3], "values", READ, &length) : NULL;
    CHECK(values != NULL);
    CHECK(HOLDS(start >= 0 && start <= all && length > 0 && (all - start) % length == 0,
                "%zd bytes from %zd are no records of %zd", all, start, length));
    const Py_ssize_t n = (all - start) / length;
    Fields fields;
    CHECK(take_fields(&arrays, &fields, args[4], args[5], WRITE, n, length));
    unsigned char wrong = 0;
    for (Py_ssize_t row = 0; row < n && !wrong; row++) {
        const char *record = data + start + row * length;
        for (Py_ssize_t at = 0; at < length; at++)
            wrong |= (unsigned char)((record[at] & mask[at]) ^ values[at]);
        for (int f = 0; f < fields.count; f++)
            memcpy(fields.values[f] + row * fields.size[f], record + fields.offset[f],
                   (size_t)fields.size[f]);
    }
    done = PyBool_FromLong(!wrong);
END

/* write_records(record, places, columns, n): bytes of n records, each as the one that is given but for
 * the values of its fields. */
KERNEL(write_records, 4)
    Py_ssize_t length = -1;
    const Py_ssize_t n = PyLong_AsSsize_t(args[3]);
    CHECK(!PyErr_Occurred());
    const char *record = take_bytes(&arrays, args[0], "record", READ, &length);
    CHECK(record != NULL);
    CHECK(HOLDS(n >= 0 && (length == 0 || n <= PY_SSIZE_T_MAX / length), "%zd records of %zd", n, length));
    Fields fields;
    CHECK(take_fields(&arrays, &fields, args[1], args[2], READ, n, length));
    PyObject *written = PyBytes_FromStringAndSize(NULL, n * length);
    char *out = written == NULL ? NULL : PyBytes_AsString(written);
    CHECK(out != NULL);
    for (Py_ssize_t row = 0; row < n; row++, out += length) {
        memcpy(out, record, (size_t)length);
        for (int f = 0; f < fields.count; f++)
            memcpy(out + fields.offset[f], fields.values[f] + row * fields.size[f],
                   (size_t)fields.size[f]);
    }
    done = written;
END

/* ---- tracking/motion.py: eight tracks side by side */

/* Where GCC can, for wider vectors too, picked when loaded; the bits are the same in all. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif
#define INLINE static inline __attribute__((always_inline))

/* Checks that states hold k measured dimensions, then velocities. */
static int states_fit(Py_ssize_t size, Py_ssize_t k)
{
    return HOLDS(size >= k && size <= MOST_STATES, "%zd states of %zd", size, k) && dimensions_fit(k);
}

/* predict(state (T, S), covariance (T, S, S), moving (V,), diffusion (S, S), seconds, grown):
 * F x and F P F' + Q, in place; the last V states are the velocities. */
KERNEL(predict, 6)
    double told[2], *state, *covariance, *diffusion;
    int64_t *moving;
    CHECK(numbers(args + 4, 2, told));
    Py_ssize_t shape[3] = {-1, -1, 0}, velocities = -1;
    TAKE(state, args[0], 'd', WRITE, 2, shape);
    const Py_ssize_t tracks = shape[0], size = shape[2] = shape[1];
    TAKE(covariance, args[1], 'd', WRITE, 3, shape);
    TAKE(moving, args[2], 'q', READ, 1, &velocities);
    TAKE(diffusion, args[3], 'd', READ, 2, shape + 1);
    const Py_ssize_t k = size - velocities;
    CHECK(states_fit(size, k) && within("moving", moving, velocities, k));
    for (Py_ssize_t t = 0; t < tracks; t++) {
        double *x = state + t * size, *p = covariance + t * size * size;
        for (Py_ssize_t v = 0; v < velocities; v++) {
            x[moving[v]] += told[0] * x[k + v];
            for (Py_ssize_t i = 0; i < size; i++)
                p[moving[v] * size + i] += told[0] * p[(k + v) * size + i];
        }
        for (Py_ssize_t i = 0; i < size; i++)
            for (Py_ssize_t v = 0; v < velocities; v++)
                p[i * size + moving[v]] += told[0] * p[i * size + k + v];
        for (Py_ssize_t i = 0; i < size * size; i++)
            p[i] += diffusion[i];
        for (Py_ssize_t i = 0; i < size; i++)
            p[i * size + i] *= told[1];
    }
    done = Py_NewRef(Py_None);
END

/* Adds the products of n pairs of entries, b's so far apart, to a sum, in order. */
INLINE void add_products(double *restrict sum, Lanes *a, Lanes *b, Py_ssize_t step, Py_ssize_t n)
{
    Lanes total;
    memcpy(total, sum, sizeof total);
    for (Py_ssize_t m = 0; m < n; m++)
        EACH_LANE total[lane] += a[m][lane] * b[m * step][lane];
    memcpy(sum, total, sizeof total);
}

/* Multiplies (rows, n), whose rows are so far apart, by (n, columns). */
INLINE void multiply(Lanes *restrict out, Lanes *a, Py_ssize_t step, Lanes *b, Py_ssize_t rows,
                     Py_ssize_t n, Py_ssize_t columns)
{
    memset(out, 0, (size_t)(rows * columns) * sizeof *out);
    for (Py_ssize_t i = 0; i < rows; i++)
        for (Py_ssize_t j = 0; j < columns; j++)
            add_products(out[i * columns + j], a + i * step, b + j, columns, n);
}

/* Turns (k, k) into minus its inverse by the sweep operator. */
INLINE void sweep_out(Lanes *restrict a, Py_ssize_t k)
{
    Lanes row[MOST_DIMENSIONS], pivot, factor;
    for (Py_ssize_t j = 0; j < k; j++) {
        memcpy(pivot, a[j * k + j], sizeof pivot);
        for (Py_ssize_t c = 0; c < k; c++)
            EACH_LANE row[c][lane] = a[j * k + c][lane] / pivot[lane];
        for (Py_ssize_t i = 0; i < k; i++) {
            memcpy(factor, a[i * k + j], sizeof factor);
            for (Py_ssize_t c = 0; c < k; c++)
                EACH_LANE a[i * k + c][lane] -= factor[lane] * row[c][lane];
        }
        for (Py_ssize_t c = 0; c < k; c++) {
            memcpy(a[j * k + c], row[c], sizeof pivot);
            memcpy(a[c * k + j], row[c], sizeof pivot);
        }
        EACH_LANE a[j * k + j][lane] = -1.0 / pivot[lane];
    }
}

/* Updates p (size, size), on and below its diagonal, and x by nu and r (k, k); `room` is behind. */
WIDE static void update_lanes(Lanes *p, Lanes *x, Lanes *nu, Lanes *r, Lanes *room, Py_ssize_t size,
                              Py_ssize_t k, double grown)
{
    Lanes *inverse = room, *gain = inverse + k * k, *rest = gain + size * k;
    Lanes *carried = rest + size * k, *half = carried + size * k;
    for (Py_ssize_t i = 0; i < k; i++)
        for (Py_ssize_t j = 0; j < k; j++)
            EACH_LANE inverse[i * k + j][lane] =
                (p[i * size + j][lane] + r[i * k + j][lane]) * (i == j ? grown : 1.0);
    sweep_out(inverse, k);
    for (Py_ssize_t i = 0; i < k * k; i++)
        EACH_LANE inverse[i][lane] = -inverse[i][lane];
    multiply(gain, p, size, inverse, size, k, k);
    for (Py_ssize_t i = 0; i < size * k; i++)
        EACH_LANE rest[i][lane] = -gain[i][lane];
    for (Py_ssize_t i = 0; i < k; i++)
        EACH_LANE rest[i * k + i][lane] += 1.0;
    multiply(half, rest, k, p, size, k, size);
    for (Py_ssize_t i = k * size; i < size * size; i++)
        EACH_LANE half[i][lane] += p[i][lane];
    multiply(carried, gain, k, r, size, k, k);
    for (Py_ssize_t i = 0; i < size; i++) {
        for (Py_ssize_t j = 0; j <= i; j++) {
            Lanes entry = {0.0};
            add_products(entry, half + i * size, rest + j * k, 1, k);
            if (j >= k)
                EACH_LANE entry[lane] += half[i * size + j][lane];
            add_products(entry, carried + i * k, gain + j * k, 1, k);
            EACH_LANE p[i * size + j][lane] = entry[lane] * (i == j ? grown : 1.0);
        }
        Lanes moved = {0.0};
        add_products(moved, gain + i * k, nu, 1, k);
        EACH_LANE x[i][lane] += moved[lane];
    }
}

/* Copies n numbers into a lane. */
static void spread(Lanes *to, int lane, const double *from, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        to[i][lane] = from[i];
}

/* update(state (T, S), covariance (T, S, S), track (M,), detection (M,), innovation (M, K),
 *        noise (N, K, K), grown): Joseph's form for some tracks, in place; K states are measured. */
KERNEL(update, 7)
    double grown, *state, *covariance, *innovation, *noise;
    int64_t *track, *detection;
    CHECK(numbers(args + 6, 1, &grown));
    Py_ssize_t shape[3] = {-1, -1, 0}, pairs[2] = {-1, -1};
    TAKE(state, args[0], 'd', WRITE, 2, shape);
    const Py_ssize_t size = shape[2] = shape[1];
    TAKE(covariance, args[1], 'd', WRITE, 3, shape);
    TAKE(innovation, args[4], 'd', READ, 2, pairs);
    TAKE(track, args[2], 'q', READ, 1, pairs);
    TAKE(detection, args[3], 'q', READ, 1, pairs);
    const Py_ssize_t k = pairs[1];
    Py_ssize_t noises[3] = {-1, k, k};
    TAKE(noise, args[5], 'd', READ, 3, noises);
    CHECK(states_fit(size, k) && within("track", track, pairs[0], shape[0]) &&
          within("detection", detection, pairs[0], noises[0]));
    /* Of one call at a time: no kernel lets go of the interpreter. */
    static _Alignas(sizeof(Lanes)) Lanes p[(2 * MOST_STATES + 1) * MOST_STATES +
                                           (3 * MOST_STATES + 2 * MOST_DIMENSIONS + 1) * MOST_DIMENSIONS];
    Lanes *x = p + size * size, *nu = x + size, *r = nu + k, *room = r + k * k;
    for (Py_ssize_t first = 0; first < pairs[0]; first += LANES) {
        const int here = pairs[0] - first < LANES ? (int)(pairs[0] - first) : LANES;
        EACH_LANE {
            /* Lanes without a pair repeat the last. */
            const Py_ssize_t pair = first + (lane < here ? lane : here - 1);
            spread(p, lane, covariance + track[pair] * size * size, size * size);
            spread(x, lane, state + track[pair] * size, size);
            spread(nu, lane, innovation + pair * k, k);
            spread(r, lane, noise + detection[pair] * k * k, k * k);
        }
        update_lanes(p, x, nu, r, room, size, k, grown);
        for (int lane = 0; lane < here; lane++) {
            double *to = covariance + track[first + lane] * size * size;
            for (Py_ssize_t i = 0; i < size; i++) {
                state[track[first + lane] * size + i] = x[i][lane];
                for (Py_ssize_t j = 0; j <= i; j++)
                    to[i * size + j] = to[j * size + i] = p[i * size + j][lane];
            }
        }
    }
    done = Py_NewRef(Py_None);
END

/* ---- tracking/association.py */

/* n tracks or detections, of `size` numbers each; place and reach along the first length. */
typedef struct {
    const double *mean, *covariance, *place, *reach;
    const int64_t *kind;
    Py_ssize_t n, size;
} Side;

static int take_side(Arrays *all, PyObject *const *args, Side *side)
{
    Py_ssize_t shape[3] = {-1, -1, 0};
    if ((side->mean = take(all, args[0], "mean", 'd', READ, 2, shape)) == NULL)
        return 0;
    side->n = shape[0], side->size = shape[2] = shape[1];
    return (side->covariance = take(all, args[1], "covariance", 'd', READ, 3, shape)) != NULL &&
           (side->kind = take(all, args[2], "class_index", 'q', READ, 1, shape)) != NULL &&
           (side->place = take(all, args[3], "place", 'd', READ, 1, shape)) != NULL &&
           (side->reach = take(all, args[4], "reach", 'd', READ, 1, shape)) != NULL;
}

/* The pairs found, of which `most` are kept, and what they have to fulfil in each of j dimensions:
 * the period, 0 for none, and how far apart they may be. */
typedef struct {
    Side tracks, detections;
    const int64_t *joint;
    const double *period, *farthest;
    int64_t *track, *detection, *near;
    Py_ssize_t j, found, most;
    double bound;
} Search;

/* Innovation in a joint dimension; an angle as NumPy has it: (values + half) % period - half. */
static double apart(const Search *s, int64_t t, int64_t d, Py_ssize_t i)
{
    const double value = s->detections.mean[d * s->detections.size + s->joint[i]] -
                         s->tracks.mean[t * s->tracks.size + s->joint[i]];
    if (!(s->period[i] > 0.0))
        return value;
    const double rest = fmod(value + s->period[i] / 2, s->period[i]);
    return (rest < 0.0 ? rest + s->period[i] : rest) - s->period[i] / 2;
}

/* Entry of S in joint dimensions. */
static double joined(const Search *s, int64_t t, int64_t d, Py_ssize_t i, Py_ssize_t m)
{
    const Py_ssize_t a = s->tracks.size, b = s->detections.size;
    return s->tracks.covariance[(t * a + s->joint[i]) * a + s->joint[m]] +
           s->detections.covariance[(d * b + s->joint[i]) * b + s->joint[m]];
}

/* Sweeps over n detections in the order of their places; returns whether `most` were enough. */
static int sweep(Search *s, const int64_t *rows, Py_ssize_t n, double farthest, Py_ssize_t most)
{
    double reach = 0.0, low = INFINITY, high = -INFINITY;
    for (Py_ssize_t i = 0; i < n; i++) {
        reach = s->detections.reach[rows[i]] > reach ? s->detections.reach[rows[i]] : reach;
        low = fmin(low, s->detections.place[rows[i]]), high = fmax(high, s->detections.place[rows[i]]);
    }
    for (Py_ssize_t t = 0; t < s->tracks.n; t++)
        low = fmin(low, s->tracks.place[t]), high = fmax(high, s->tracks.place[t]);
    farthest = fmin(2.0 * (high - low), farthest);
    for (Py_ssize_t t = 0; t < s->tracks.n; t++) {
        const double window = fmin(s->tracks.reach[t] + reach, farthest), at = s->tracks.place[t];
        Py_ssize_t begin = 0, end = n;
        while (begin < end) {
            const Py_ssize_t middle = (begin + end) / 2;
            if (s->detections.place[rows[middle]] < at - window)
                begin = middle + 1;
            else
                end = middle;
        }
        /* Without a branch that depends on the class: it would be guessed wrong. */
        Py_ssize_t near = 0;
        for (; begin < n && s->detections.place[rows[begin]] <= at + window; begin++) {
            const int64_t d = rows[begin];
            const int same = s->detections.kind[d] == s->tracks.kind[t];
            const double reaches = s->tracks.reach[t] + s->detections.reach[d];
            s->near[near] = d;
            near += same & (fabs(s->detections.place[d] - at) <= reaches);
            most -= same;
        }
        if (most < 0)
            return 0;
        for (Py_ssize_t c = 0; c < near; c++) {
            const int64_t d = s->near[c];
            Py_ssize_t i = 0;
            for (; i < s->j; i++) {
                const double nu = apart(s, t, d, i);
                if (!(nu * nu <= s->bound * joined(s, t, d, i, i) && fabs(nu) <= s->farthest[i]))
                    break;
            }
            if (i == s->j && s->found++ < s->most)
                s->track[s->found - 1] = t, s->detection[s->found - 1] = d;
        }
    }
    return 1;
}

/* Turns factor into that of S, and u into the whitened innovation; returns lanes with a factor. */
WIDE static unsigned measure(Lanes *factor, Lanes *u, Py_ssize_t j, double singular)
{
    const unsigned regular = factorise(factor, j, singular);
    for (Py_ssize_t i = 0; i < j; i++) {
        for (Py_ssize_t m = 0; m < i; m++)
            EACH_LANE u[i][lane] -= factor[TRIANGLE(i, m)][lane] * u[m][lane];
        EACH_LANE u[i][lane] /= factor[TRIANGLE(i, i)][lane];
    }
    return regular;
}

/* gate(mean (T, S), covariance (T, S, S), class_index, place, reach (T,) of tracks, the same of
 *      detections, narrow and wide detections in the order of their places, joint (J,),
 *      [period, farthest] (2, J), written: pairs (2, M), measures (M, 2 J + 1),
 *      farthest, limit, bound, most swept, grown, singular)
 * measures: whitened innovation, pivots, squared distance. Returns the number of pairs; -n if n > M are
 * within the bounds; None if too many were swept. */
KERNEL(gate, 22)
    Search s = {.found = 0};
    double told[6], *bounds, *measures;
    int64_t *narrow, *wide, *joint, *pairs;
    CHECK(numbers(args + 16, 6, told));
    CHECK(take_side(&arrays, args, &s.tracks) && take_side(&arrays, args + 5, &s.detections));
    Py_ssize_t narrows = -1, wides = -1, j = -1, room[2] = {2, -1};
    TAKE(narrow, args[10], 'q', READ, 1, &narrows);
    TAKE(wide, args[11], 'q', READ, 1, &wides);
    TAKE(joint, args[12], 'q', READ, 1, &j);
    TAKE(bounds, args[13], 'd', READ, 2, ((Py_ssize_t[]){2, j}));
    TAKE(pairs, args[14], 'q', WRITE, 2, room);
    TAKE(measures, args[15], 'd', WRITE, 2, ((Py_ssize_t[]){room[1], 2 * j + 1}));
    const Py_ssize_t n = s.detections.n;
    CHECK(dimensions_fit(j) && within("narrow", narrow, narrows, n) && within("wide", wide, wides, n) &&
          within("joint", joint, j, s.tracks.size) && within("joint", joint, j, s.detections.size));
    s.joint = joint, s.period = bounds, s.farthest = bounds + j, s.j = j;
    s.track = pairs, s.detection = pairs + room[1], s.most = room[1], s.bound = told[2];
    const Py_ssize_t most = told[3] >= 0.0 && told[3] < 1e9 ? (Py_ssize_t)told[3] : 0;
    s.near = PyMem_Malloc((size_t)(narrows + wides + 1) * sizeof *s.near);
    CHECK(s.near != NULL || PyErr_NoMemory() != NULL);
    const int all = sweep(&s, narrow, narrows, told[0], most) && sweep(&s, wide, wides, told[0], most);
    PyMem_Free(s.near);
    Py_ssize_t kept = 0;
    for (Py_ssize_t first = 0; all && s.found <= s.most && first < s.found; first += LANES) {
        Lanes factor[TRIANGLE(MOST_DIMENSIONS, 0)], u[MOST_DIMENSIONS];
        const int here = s.found - first < LANES ? (int)(s.found - first) : LANES;
        EACH_LANE {
            const Py_ssize_t pair = first + (lane < here ? lane : here - 1);
            for (Py_ssize_t i = 0; i < j; i++) {
                u[i][lane] = apart(&s, s.track[pair], s.detection[pair], i);
                for (Py_ssize_t m = 0; m <= i; m++)
                    factor[TRIANGLE(i, m)][lane] = joined(&s, s.track[pair], s.detection[pair], i, m);
                factor[TRIANGLE(i, i)][lane] *= told[4];
            }
        }
        const unsigned regular = measure(factor, u, j, told[5]);
        for (int lane = 0; lane < here; lane++) {
            double nis = 0.0, *out = measures + kept * (2 * j + 1);
            for (Py_ssize_t i = 0; i < j; i++) {
                nis += u[i][lane] * u[i][lane];
                out[i] = u[i][lane], out[j + i] = factor[TRIANGLE(i, i)][lane];
            }
            out[2 * j] = nis;
            s.track[kept] = s.track[first + lane], s.detection[kept] = s.detection[first + lane];
            kept += (regular >> lane & 1) && nis <= told[1];
        }
    }
    done = all ? PyLong_FromSsize_t(s.found <= s.most ? kept : -s.found) : Py_NewRef(Py_None);
END

/* ---- module */

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD(factorise_lower),
    METHOD(gate),
    METHOD(predict),
    METHOD(read_records),
    METHOD(update),
    METHOD(usable),
    METHOD(write_records),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddStringConstant(module, "SOURCE", SOURCE) < 0)
        Py_CLEAR(module);
    return module;
}
