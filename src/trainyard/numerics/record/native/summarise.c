/* The sums of `sums.py` over the elements of a contiguous tensor on the host, in one pass. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VERSION 1
#define BUCKETS 64
#define LANES 8
#define PARTS (BUCKETS / LANES)
#define INLINE static inline __attribute__((always_inline))

typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Integers __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Words __attribute__((vector_size(32)));
typedef int16_t Halves __attribute__((vector_size(16)));
typedef int8_t Signs __attribute__((vector_size(8)));

enum Format { FLOAT32, FLOAT64, BFLOAT16 };

/* The signs of sketches (their first BUCKETS again at the end), the multipliers of hashes, and the factor of each block
   of multipliers: see sketch.py and positional_hash.py. */
struct Pools {
    const int8_t *signs;
    int64_t sign_count;
    const int64_t *multipliers;
    int64_t multiplier_count;
    const int64_t *factors;
};

struct Sums {
    uint64_t digest;
    double total, squares, maximum;
    int64_t nan, positive, negative;
    double sketch[BUCKETS];
};

int native_version(void) { return VERSION; }

INLINE double sum_of(Doubles values) {
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++) sum += values[lane];
    return sum;
}

INLINE Integers wide_words(const char *data) {
    Words words;
    memcpy(&words, data, sizeof words);
    return __builtin_convertvector(words, Integers);
}

/* Elements at `data`, and the sum of their bits with `multipliers`. */
INLINE Doubles read_part(enum Format format, const char *data, const int64_t *multipliers, Integers *hashes) {
    Integers factors;
    memcpy(&factors, multipliers, sizeof factors);
    if (format == FLOAT64) {
        Doubles values;
        Integers more;
        memcpy(&values, data, sizeof values);
        memcpy(&more, multipliers + LANES, sizeof more);
        *hashes += wide_words(data) * factors + wide_words(data + 32) * more;
        return values;
    }
    Floats values;
    if (format == FLOAT32) {
        memcpy(&values, data, sizeof values);
        *hashes += wide_words(data) * factors;
    } else {
        Halves halves;
        memcpy(&halves, data, sizeof halves);
        *hashes += __builtin_convertvector(halves, Integers) * factors;
        values = (Floats)(__builtin_convertvector(halves, Words) << 16);
    }
    return __builtin_convertvector(values, Doubles);
}

/* Counts the non-finite values of a row, and replaces them by 0. */
static void replace_nonfinite(Doubles *row, struct Sums *sums) {
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        double value = row[bucket / LANES][bucket % LANES];
        if (isfinite(value)) continue;
        (*(isnan(value) ? &sums->nan : value > 0 ? &sums->positive : &sums->negative))++;
        row[bucket / LANES][bucket % LANES] = 0.0;
    }
}

INLINE void add_rows(enum Format format, const char *data, int64_t elements, const struct Pools *pools, struct Sums *sums) {
    const int64_t row_bytes = BUCKETS * (format == FLOAT64 ? 8 : format == FLOAT32 ? 4 : 2);
    const int64_t row_lanes = format == FLOAT64 ? 2 * BUCKETS : BUCKETS;
    Doubles buckets[PARTS] = {{0}}, total = {0}, squares = {0};
    Integers maximum = {0}; /* bits of absolute values, which have the order of the values */
    char padded[BUCKETS * sizeof(double)] = {0};
    int64_t sign_at = 0, rows = (elements + BUCKETS - 1) / BUCKETS, rest = elements % BUCKETS;
    for (int64_t number = 0; number < rows; number++) {
        const char *at = data + number * row_bytes;
        if (rest && number == rows - 1) at = memcpy(padded, at, (size_t)(rest * (row_bytes / BUCKETS)));
        int64_t lane = number * row_lanes;
        const int64_t *multipliers = pools->multipliers + lane % pools->multiplier_count;
        Doubles row[PARTS], zeros = {0};
        Integers hashes = {0};
        for (int part = 0; part < PARTS; part++) {
            row[part] = read_part(format, at + part * (row_bytes / PARTS), multipliers + part * (row_lanes / PARTS), &hashes);
            zeros += row[part] * 0.0;
        }
        uint64_t digest = 0;
        for (int part = 0; part < LANES; part++) digest += (uint64_t)hashes[part];
        sums->digest += digest * (uint64_t)pools->factors[lane / pools->multiplier_count];
        if (sum_of(zeros) != 0.0) replace_nonfinite(row, sums); /* NaN, as 0 times infinity is */
        for (int part = 0; part < PARTS; part++) {
            Signs signs;
            memcpy(&signs, pools->signs + sign_at + part * LANES, sizeof signs);
            Integers size = (Integers)row[part] & INT64_MAX, larger = size > maximum;
            buckets[part] += row[part] * __builtin_convertvector(signs, Doubles);
            total += row[part];
            squares += row[part] * row[part];
            maximum = (size & larger) | (maximum & ~larger);
        }
        sign_at += BUCKETS;
        if (sign_at >= pools->sign_count) sign_at -= pools->sign_count;
    }
    Doubles maxima = (Doubles)maximum;
    sums->total = sum_of(total);
    sums->squares = sum_of(squares);
    for (int lane = 0; lane < LANES; lane++) sums->maximum = maxima[lane] > sums->maximum ? maxima[lane] : sums->maximum;
    for (int bucket = 0; bucket < BUCKETS; bucket++) sums->sketch[bucket] = buckets[bucket / LANES][bucket % LANES];
}

INLINE void add_format(int format, const char *data, int64_t elements, const struct Pools *pools, struct Sums *sums) {
    if (format == FLOAT32) add_rows(FLOAT32, data, elements, pools, sums);
    if (format == FLOAT64) add_rows(FLOAT64, data, elements, pools, sums);
    if (format == BFLOAT16) add_rows(BFLOAT16, data, elements, pools, sums);
}

#define ARGUMENTS int format, const char *data, int64_t elements, const struct Pools *pools, struct Sums *sums
static void add_anywhere(ARGUMENTS) { add_format(format, data, elements, pools, sums); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_avx2(ARGUMENTS) { add_format(format, data, elements, pools, sums); }
__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))) static void add_avx512(ARGUMENTS) {
    add_format(format, data, elements, pools, sums);
}
#endif

/* Fills `sums`, of zeros, with those of `elements` elements, by the widest version that this processor has. */
void summarise(ARGUMENTS) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        add_avx512(format, data, elements, pools, sums);
    else if (__builtin_cpu_supports("avx2"))
        add_avx2(format, data, elements, pools, sums);
    else
#endif
        add_anywhere(format, data, elements, pools, sums);
}
