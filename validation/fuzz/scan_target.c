/* libFuzzer's target of native/scan.c. The first byte of an input chooses how the text is cut into pieces, as
   chrome.py feeds it; the text follows. Everything a caller could read afterwards is read, so that the address sanitizer sees it.
   FUZZ_FIGURES names a file for the number of inputs and of those of which an event was kept. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct scan scan;
scan *scan_new(void);
void scan_free(scan *s);
size_t scan_feed(scan *s, const char *text, size_t at, size_t length, int *why, int64_t *entries);
int64_t scan_intern(scan *s, int table, const char *at, size_t length);
int scan_push(scan *s, int table, const int64_t *values);
size_t scan_count(const scan *s, int table);
const void *scan_column(const scan *s, int table, int column);
size_t scan_texts(const scan *s, int table, const char **text, const size_t **ends);
size_t scan_collectives(scan *s, const int64_t **row, const char **text, const size_t **ends);

enum { NEED_MORE, CLOSED, ODD, NO_MEMORY };
enum { TABLES = 4, ROWS = 3, WIDEST = 10 };
static const uint8_t widths[ROWS][WIDEST] = {
    {8, 8, 4, 4, 1, 8, 8, 8, 1, 4}, {8, 8, 4, 4, 4, 1, 8, 8, 8, 1}, {8, 4, 4, 4}};

static volatile uint64_t sum;
static unsigned long inputs, decoded;

static void report(void) {
    const char *path = getenv("FUZZ_FIGURES");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "{\"inputs\": %lu, \"decoded\": %lu}\n", inputs, decoded);
    fclose(file);
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count; (void)arguments;
    return atexit(report);
}

static void touch(const void *from, size_t length) {
    for (size_t i = 0; i < length; i++) sum += ((const uint8_t *)from)[i];
}

static void touch_texts(const char *text, const size_t *ends, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (ends[i] < (i ? ends[i - 1] : 0)) abort();
    if (count) touch(text, ends[count - 1]);
}

static void meet(scan *s) {
    const int64_t *row; const char *text; const size_t *ends;
    size_t count = scan_collectives(s, &row, &text, &ends);
    touch_texts(text, ends, 2 * count);
    for (size_t i = 0; i < count; i++)
        if ((size_t)(row[i] / 2) >= scan_count(s, (int)(row[i] % 2))) abort();
}

/* Feeds the text from `at` on up to `length`; returns where it is done. At an odd event one byte is passed over. */
static size_t feed(scan *s, const char *from, size_t at, size_t length, int last) {
    /* A copy that ends where the text does, so that a byte read beyond it is seen. */
    char *text = malloc(length ? length : 1);
    memcpy(text, from, length);
    int why = NEED_MORE;
    int64_t entries = 0;
    for (;;) {
        size_t done = scan_feed(s, text, at, length, &why, &entries);
        if (done < at || done > length || why == NO_MEMORY) abort();
        at = done;
        meet(s);
        if (why == NEED_MORE && (!last || at >= length)) break;
        if (why != CLOSED) at++;
        if (at >= length) break;
    }
    free(text);
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    const char *text = (const char *)data + 1;
    size_t length = size - 1, piece = data[0] ? 8u * data[0] : length, at = 0;
    scan *s = scan_new();
    if (!s) abort();
    for (size_t end = piece; end < length; end += piece) {
        at = feed(s, text, at, end, 0);
        if (at > end) at = end;
    }
    feed(s, text, at, length, 1);
    int64_t row[WIDEST] = {1, 2, 0};
    if (scan_intern(s, 0, text, length < 40 ? length : 40) < 0 || !scan_push(s, size % ROWS, row)) abort();
    for (int table = 0; table < ROWS; table++)
        for (int column = 0; column < WIDEST && widths[table][column]; column++)
            if (scan_count(s, table))
                touch(scan_column(s, table, column), scan_count(s, table) * widths[table][column]);
    for (int table = 0; table < TABLES; table++) {
        const char *kept; const size_t *ends;
        size_t count = scan_texts(s, table, &kept, &ends);
        touch_texts(kept, ends, count);
    }
    inputs++;
    decoded += scan_count(s, 0) + scan_count(s, 1) + scan_count(s, 2) > 1;
    scan_free(s);
    return 0;
}
