/* The sums of `sums.py` over the elements of a contiguous tensor on the host, in one pass. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VERSION 3
#define BUCKETS 64
#define SAMPLES 64
#define LANES 8
#define PARTS (BUCKETS / LANES)
#define ARGUMENTS const char *data, int64_t elements, const struct Pools *pools, struct Sums *sums
#define INLINE static inline __attribute__((always_inline))

typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Integers __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Words __attribute__((vector_size(32)));
typedef int16_t Halves __attribute__((vector_size(16)));

enum Format { FLOAT32, FLOAT64, BFLOAT16 };

/* The signs of sketches (bits, 1 for -1, their first BUCKETS again at the end), the multipliers of hashes, and the factor
   of each block of multipliers: see sketch.py and positional_hash.py. */
struct Pools {
    const uint64_t *signs;
    int64_t sign_count;
    const int64_t *multipliers;
    int64_t multiplier_count;
    const int64_t *factors;
};

struct Sums {
    uint64_t digest;
    double total, squares, maximum;
    int64_t nan, positive, negative;
    double sketch[BUCKETS], sample[SAMPLES];
    int64_t samples;
};

static double finite_or_zero(double value) { return isfinite(value) ? value : 0.0; }

static double element_at(enum Format format, const char *data, int64_t position) {
    uint32_t bits = 0;
    double wide;
    float value;
    if (format == FLOAT64) return *(double *)memcpy(&wide, data + 8 * position, 8);
    if (format == FLOAT32) memcpy(&bits, data + 4 * position, 4);
    if (format == BFLOAT16) memcpy((char *)&bits + 2, data + 2 * position, 2);
    return *(float *)memcpy(&value, &bits, 4);
}

/* The elements at `sample_positions` (tensor_record.py). */
static void read_sample(enum Format format, const char *data, int64_t elements, struct Sums *sums) {
    sums->samples = elements < SAMPLES ? elements : SAMPLES;
    for (int64_t at = 0; at < sums->samples; at++) {
        int64_t position = elements <= SAMPLES ? at : at * (elements - 1) / (SAMPLES - 1);
        sums->sample[at] = finite_or_zero(element_at(format, data, position));
    }
}

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

INLINE uint64_t total_of(Integers values) {
    uint64_t total = 0;
    for (int lane = 0; lane < LANES; lane++) total += (uint64_t)values[lane];
    return total;
}

/* The signs of a row, from bit `at` of the pool. */
INLINE uint64_t signs_at(const uint64_t *signs, int64_t at) {
    int64_t word = at / BUCKETS, bit = at % BUCKETS;
    return bit ? signs[word] >> bit | signs[word + 1] << (BUCKETS - bit) : signs[word];
}

/* Values, negated where the lowest bits of `negative` are 1. */
INLINE Doubles signed_by(Doubles values, uint64_t negative) {
    const Integers to_top = {63, 62, 61, 60, 59, 58, 57, 56};
    Integers bits = (Integers){0} + (int64_t)negative;
    return (Doubles)((Integers)values ^ ((bits << to_top) & INT64_MIN));
}

/* `is_finite`: no element is NaN or infinite, so that none has to be replaced. */
INLINE void add_rows(enum Format format, int is_finite, ARGUMENTS) {
    const int64_t row_bytes = BUCKETS * (format == FLOAT64 ? 8 : format == FLOAT32 ? 4 : 2);
    const int64_t row_lanes = format == FLOAT64 ? 2 * BUCKETS : BUCKETS;
    Doubles buckets[PARTS] = {{0}}, total = {0}, squares = {0};
    Integers maximum = {0}; /* bits of absolute values, which have the order of the values */
    char padded[BUCKETS * sizeof(double)] = {0};
    Integers hashes = {0}; /* of the present block of multipliers */
    int64_t sign_at = 0, block = 0, rows = (elements + BUCKETS - 1) / BUCKETS, rest = elements % BUCKETS;
    for (int64_t number = 0; number < rows; number++) {
        const char *at = data + number * row_bytes;
        if (rest && number == rows - 1) at = memcpy(padded, at, (size_t)(rest * (row_bytes / BUCKETS)));
        int64_t lane = number * row_lanes;
        const int64_t *multipliers = pools->multipliers + lane % pools->multiplier_count;
        if (lane / pools->multiplier_count != block) {
            sums->digest += total_of(hashes) * (uint64_t)pools->factors[block];
            hashes = (Integers){0};
            block = lane / pools->multiplier_count;
        }
        Doubles row[PARTS];
        for (int part = 0; part < PARTS; part++)
            row[part] = read_part(format, at + part * (row_bytes / PARTS), multipliers + part * (row_lanes / PARTS), &hashes);
        if (!is_finite) replace_nonfinite(row, sums);
        uint64_t signs = signs_at(pools->signs, sign_at);
        for (int part = 0; part < PARTS; part++) {
            Integers size = (Integers)row[part] & INT64_MAX, larger = size > maximum;
            buckets[part] += signed_by(row[part], signs >> (part * LANES));
            total += row[part];
            squares += row[part] * row[part];
            maximum = (size & larger) | (maximum & ~larger);
        }
        sign_at += BUCKETS;
        if (sign_at >= pools->sign_count) sign_at -= pools->sign_count;
    }
    sums->digest += total_of(hashes) * (uint64_t)pools->factors[block];
    Doubles maxima = (Doubles)maximum;
    sums->total = sum_of(total);
    sums->squares = sum_of(squares);
    for (int lane = 0; lane < LANES; lane++) sums->maximum = maxima[lane] > sums->maximum ? maxima[lane] : sums->maximum;
    for (int bucket = 0; bucket < BUCKETS; bucket++) sums->sketch[bucket] = finite_or_zero(buckets[bucket / LANES][bucket % LANES]);
}

/* A sum of squares shows whether all elements are finite, as they nearly always are; else they are read again. */
INLINE void add_either(enum Format format, ARGUMENTS) {
    add_rows(format, 1, data, elements, pools, sums);
    if (isfinite(sums->squares)) return;
    *sums = (struct Sums){0};
    add_rows(format, 0, data, elements, pools, sums);
}

INLINE void add_format(int format, ARGUMENTS) {
    if (format == FLOAT32) add_either(FLOAT32, data, elements, pools, sums);
    if (format == FLOAT64) add_either(FLOAT64, data, elements, pools, sums);
    if (format == BFLOAT16) add_either(BFLOAT16, data, elements, pools, sums);
}

static void add_anywhere(int format, ARGUMENTS) { add_format(format, data, elements, pools, sums); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_avx2(int format, ARGUMENTS) { add_format(format, data, elements, pools, sums); }
__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))) static void add_avx512(int format, ARGUMENTS) {
    add_format(format, data, elements, pools, sums);
}
#endif

/* Fills `sums`, of zeros, with those of `elements` elements, by the widest version that this processor has. */
void summarise(int format, ARGUMENTS) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        add_avx512(format, data, elements, pools, sums);
    else if (__builtin_cpu_supports("avx2"))
        add_avx2(format, data, elements, pools, sums);
    else
#endif
        add_anywhere(format, data, elements, pools, sums);
    read_sample(format, data, elements, sums);
}
