/* Scans the events of a Chrome trace (Kineto's JSON) into columns, for CompiledScanner in scanner.py.

   It reads only plain events: strict JSON, plain decimal timestamps, arguments of the expected types. Before any other
   event it stops, and the caller reads that one in Python. So an event that it accepts has the same meaning as in
   event.py, and one that it does not accept takes longer.

   Texts that repeat (names, threads, streams, ...) are interned: stored once in a table, and referred to by their
   number. A lane is a stream. Rows have the columns of the tables in rows.py. Functions that may run out of memory
   return 0 or -1 for it, as stated. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Why scan_feed stopped: the text ends, the array ends, before an event that is not plain, memory is exhausted. */
enum { NEED_MORE, CLOSED, ODD, NO_MEMORY };
enum { NAMES, THREADS, LANES, SHAPES, PROCESSES, CATEGORIES, TABLES };   /* tables of interned texts, their number */
enum { KERNEL, COPY, MEMSET, DRAWN, UNKNOWN };                    /* DeviceWork.what; UNKNOWN: of an unknown category */
enum { OP, CALL, NOTE, PYTHON };                                  /* HostSpans.what */
/* Columns of the tables of host spans (H), device work (D) and waits between streams (W). */
enum { H_START, H_STOP, H_NAME, H_THREAD, H_WHAT, H_CORRELATION, H_EXTERNAL, H_SEQ, H_BACKWARD, H_SHAPE, H_COLUMNS };
enum { D_START, D_STOP, D_NAME, D_LANE, D_DEVICE, D_WHAT, D_CORRELATION, D_EXTERNAL, D_BYTES, D_OCCUPANCY,
       D_PROCESS, D_CATEGORY, D_COLUMNS };
enum { W_CORRELATION, W_DEVICE, W_LANE, W_ON, W_PROCESS, W_COLUMNS };
enum { HOST, DEVICE, WAITS, ROWS };                               /* tables of rows, their number */
#define WIDEST 12                                                 /* columns of a table, at most */
#define DEEPEST 64                                                /* levels of nested JSON, at most */
#define FARTHEST (1ll << 61)                                      /* ns: start + length fits into 64 bits */

/* Bytes of a value in each column of each table. */
static const uint8_t widths[ROWS][WIDEST] = {
    {8, 8, 4, 4, 1, 8, 8, 8, 1, 4}, {8, 8, 4, 4, 4, 1, 8, 8, 8, 1, 4, 4}, {8, 4, 4, 4, 4}};
static const uint8_t columns_of[ROWS] = {H_COLUMNS, D_COLUMNS, W_COLUMNS};

/* A part of the text; escaped: a string with backslashes. at is NULL if it is absent. */
typedef struct { const char *at; size_t length; int escaped; } slice;

typedef struct {
    char *text; size_t used, room;                                /* all texts, one after the other */
    size_t *ends; size_t count, count_room;                       /* where each one ends */
    uint32_t *slots; size_t slots_room;                           /* open addressing: number + 1 */
} intern;

typedef struct { char *column[WIDEST]; size_t count, room; } rows;

typedef struct {
    intern interned[TABLES];
    rows kept[ROWS];
    intern met;                                                   /* name and args of each collective, alternating */
    int64_t *met_row; size_t met_count, met_room;                 /* 2 * row + 1 for device work, 2 * row for spans */
    int no_memory;
} scan;

/* Enlarges a block of *room elements of width bytes to at least wanted elements, by doubling. 0: no memory. */
static int grow(void **block, size_t *room, size_t wanted, size_t width) {
    if (wanted <= *room) return 1;
    size_t next = *room ? *room : 256;
    while (next < wanted) next *= 2;
    void *moved = realloc(*block, next * width);
    if (!moved) return 0;
    *block = moved; *room = next;
    return 1;
}

/* Texts */

/* A hash of a text, by multiplication and shifts, eight bytes at a time; the rest by FNV-1a. */
static uint64_t hash_of(const char *at, size_t length) {
    uint64_t hash = 0xcbf29ce484222325ull ^ length;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
        at += 8; length -= 8;
    }
    while (length--) hash = (hash ^ (uint8_t)*at++) * 0x100000001b3ull;
    return hash ^ (hash >> 32);
}

static size_t begin_of(const intern *table, size_t number) { return number ? table->ends[number - 1] : 0; }

/* Appends bytes to the last, open text of a table; ended() closes it. 0: no memory. */
static int append(intern *table, const char *at, size_t length) {
    if (!grow((void **)&table->text, &table->room, table->used + length, 1)) return 0;
    if (length) memcpy(table->text + table->used, at, length);
    table->used += length;
    return 1;
}

static int ended(intern *table) {
    if (!grow((void **)&table->ends, &table->count_room, table->count + 1, sizeof(size_t))) return 0;
    table->ends[table->count++] = table->used;
    return 1;
}

/* Doubles the slots of a table (its number of slots is a power of two) and enters its texts again. 0: no memory. */
static int rehash(intern *table) {
    size_t room = table->slots_room ? 2 * table->slots_room : 1024;
    uint32_t *slots = calloc(room, sizeof(uint32_t));
    if (!slots) return 0;
    for (size_t number = 0; number < table->count; number++) {
        size_t begin = begin_of(table, number);
        size_t place = hash_of(table->text + begin, table->ends[number] - begin) & (room - 1);
        while (slots[place]) place = (place + 1) & (room - 1);
        slots[place] = (uint32_t)number + 1;
    }
    free(table->slots);
    table->slots = slots; table->slots_room = room;
    return 1;
}

/* The number of a text in a table, which adds it if it is new. -1: no memory. */
static int64_t number_of(intern *table, const char *at, size_t length) {
    if (2 * (table->count + 1) > table->slots_room && !rehash(table)) return -1;
    size_t place = hash_of(at, length) & (table->slots_room - 1);
    for (; table->slots[place]; place = (place + 1) & (table->slots_room - 1)) {
        size_t number = table->slots[place] - 1, begin = begin_of(table, number);
        if (table->ends[number] - begin == length && !memcmp(table->text + begin, at, length)) return (int64_t)number;
    }
    if (!append(table, at, length) || !ended(table)) return -1;
    table->slots[place] = (uint32_t)table->count;
    return (int64_t)table->count - 1;
}

/* JSON. Each reader takes the position p at which its value begins and returns the position after it, need_more if the
   text ends at `end` before the value does, or odd if the value is not plain. */

static const char need_more[1], odd[1];
#define FAILED(p) ((p) == need_more || (p) == odd)

static inline int is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* The position of the first character from p on that is not white space, or end. */
static inline const char *skip_space(const char *p, const char *end) {
    if (end - p > 1 && *p == ' ') p++;                            /* after a colon or comma there is one, mostly */
    if (p < end && *p > ' ') return p;
#ifdef __SSE2__
    /* Pretty-printed files indent by many spaces after a newline. */
    if (end - p > 16 && *p == '\n') {
        __m128i text = _mm_loadu_si128((const __m128i *)(p + 1));
        unsigned other = ~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(text, _mm_set1_epi8(' '))) & 0xffff;
        p += 1 + (other ? __builtin_ctz(other) : 16);
    }
#endif
    while (p < end && *p <= ' ' && is_space(*p)) p++;
    return p;
}

static int is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* Bytes of the UTF-8 sequence that begins at `at` and is not ASCII; 0 if it is not valid (RFC 3629, section 4), -1 if
   the text ends inside it. */
static int utf8(const char *at, const char *end) {
    const uint8_t *p = (const uint8_t *)at;
    int length = p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (!length) return 0;
    if (end - at < length) return -1;
    for (int i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f)) return 0;
    if ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f)) return 0;
    return length;
}

/* Bytes at which reading of a string must look closer: quote, backslash, control characters, anything not ASCII. */
static const uint8_t stops[256] = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    ['"'] = 1, ['\\'] = 1,
    [128] = 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* Reads the string that begins at p (a quote). *content: the text between the quotes, with its escapes undecoded. */
static const char *read_string(const char *p, const char *end, slice *content) {
    const char *begin = ++p;
    content->escaped = 0;
    for (;;) {
#ifdef __SSE2__
        /* As signed bytes, control characters and all that is not ASCII are less than a space. */
        while (end - p >= 16) {
            __m128i text = _mm_loadu_si128((const __m128i *)p);
            __m128i stop = _mm_or_si128(_mm_cmplt_epi8(text, _mm_set1_epi8(' ')),
                                        _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')),
                                                     _mm_cmpeq_epi8(text, _mm_set1_epi8('\\'))));
            unsigned stop_bits = (unsigned)_mm_movemask_epi8(stop);   /* bit i: byte i is one of those */
            if (stop_bits) { p += __builtin_ctz(stop_bits); break; }
            p += 16;
        }
#endif
        while (p < end && !stops[(uint8_t)*p]) p++;
        if (p >= end) return need_more;
        if (*p == '"') { content->at = begin; content->length = (size_t)(p - begin); return p + 1; }
        if ((uint8_t)*p >= 0x80) {
            int wide = utf8(p, end);
            if (wide < 1) return wide ? need_more : odd;
            p += wide;
            continue;
        }
        if (*p != '\\') return odd;                               /* a bare control character */
        content->escaped = 1;
        if (end - p < 6) return need_more;
        if (p[1] == 'u') {
            if (!is_hex(p[2]) || !is_hex(p[3]) || !is_hex(p[4]) || !is_hex(p[5])) return odd;
            if ((p[2] | 32) == 'd') return odd;                   /* maybe half of a surrogate pair */
            p += 6;
        } else if (memchr("\"\\/bfnrt", p[1], 8)) p += 2;
        else return odd;
    }
}

/* Reads a number of JSON; one with an exponent is odd. */
static const char *read_number(const char *p, const char *end) {
    if (*p == '-') p++;
    if (p >= end) return need_more;
    if (*p == '0') p++;
    else if (*p >= '1' && *p <= '9') while (p < end && *p >= '0' && *p <= '9') p++;
    else return odd;
    if (p < end && *p == '.') {
        if (++p >= end) return need_more;
        if (*p < '0' || *p > '9') return odd;
        while (p < end && *p >= '0' && *p <= '9') p++;
    }
    if (p < end && (*p == 'e' || *p == 'E')) return odd;
    if (p >= end) return need_more;
    return p;
}

/* Reads true, false or null. */
static const char *read_word(const char *p, const char *end) {
    const char *word = *p == 't' ? "true" : *p == 'f' ? "false" : *p == 'n' ? "null" : NULL;
    if (!word) return odd;
    size_t length = strlen(word);
    if ((size_t)(end - p) < length) return need_more;
    return memcmp(p, word, length) ? odd : p + length;
}

static const char *read_value(const char *p, const char *end, int depth);

/* Reads a key and the colon after it; returns the position of the value. */
static const char *read_key(const char *p, const char *end, slice *key) {
    if (p >= end) return need_more;
    if (*p != '"') return odd;
    p = read_string(p, end, key);
    if (FAILED(p)) return p;
    if (key->escaped) return odd;                                 /* not worth comparing */
    p = skip_space(p, end);
    if (p >= end) return need_more;
    if (*p != ':') return odd;
    p = skip_space(p + 1, end);
    return p >= end ? need_more : p;
}

/* After a value in an object or array: returns the position of the next member or element, or, with *closed set, the
   position after the closing bracket `close`. */
static const char *read_next(const char *p, const char *end, char close, int *closed) {
    p = skip_space(p, end);
    if (p >= end) return need_more;
    *closed = *p == close;
    if (*closed) return p + 1;
    if (*p != ',') return odd;
    p = skip_space(p + 1, end);
    return p >= end ? need_more : p;
}

/* At the opening bracket p: returns the position of the first member or element, or, with *closed set, the position
   after the closing bracket `close` of an empty object or array. */
static const char *read_first(const char *p, const char *end, char close, int *closed) {
    p = skip_space(p + 1, end);
    if (p >= end) return need_more;
    *closed = *p == close;
    return *closed ? p + 1 : p;
}

/* Skips an object or array. depth: number of brackets around it. */
static const char *read_nested(const char *p, const char *end, int depth) {
    int object = *p == '{', closed;
    char close = object ? '}' : ']';
    if (depth >= DEEPEST) return odd;
    p = read_first(p, end, close, &closed);
    while (!FAILED(p) && !closed) {
        if (object) {
            slice key;
            p = read_key(p, end, &key);
            if (FAILED(p)) return p;
        }
        p = read_value(p, end, depth + 1);
        if (FAILED(p)) return p;
        p = read_next(p, end, close, &closed);
    }
    return p;
}

/* Skips a value of any type. depth: number of brackets around it. */
static const char *read_value(const char *p, const char *end, int depth) {
    slice ignored;
    if (p >= end) return need_more;
    if (*p == '"') return read_string(p, end, &ignored);
    if (*p == '{' || *p == '[') return read_nested(p, end, depth);
    if (*p == '-' || (*p >= '0' && *p <= '9')) return read_number(p, end);
    return read_word(p, end);
}

/* Numbers */

/* Converts an integer of at most 18 digits, which fits into 64 bits, to *value; returns whether text is one. */
static int plain_int(slice text, int64_t *value) {
    const char *p = text.at, *end = p + text.length;
    int negative = p < end && *p == '-';
    p += negative;
    if (p == end || end - p > 18) return 0;
    int64_t sum = 0;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9') return 0;
        sum = 10 * sum + (*p - '0');
    }
    *value = negative ? -sum : sum;
    return 1;
}

/* Converts decimal microseconds, quoted or not, to *ns exactly; digits past the nanosecond are left off. Returns
   whether text is such a number, not negative and of at most 4e18 ns. */
static int plain_ns(slice text, int64_t *ns) {
    if (text.length > 1 && text.at[0] == '"') { text.at++; text.length -= 2; }
    const char *p = text.at, *end = p + text.length;
    int64_t whole = 0, part = 0;
    int digits = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++, digits++) {
        if (digits == 16) return 0;
        whole = 10 * whole + (*p - '0');
    }
    if (!digits || whole >= 4000000000000000) return 0;           /* so that the sum below cannot overflow */
    if (p < end) {
        if (*p++ != '.' || p == end) return 0;
        int unit = 100;
        for (; p < end; p++) {
            if (*p < '0' || *p > '9') return 0;
            part += unit * (*p - '0');
            unit /= 10;
        }
    }
    *ns = 1000 * whole + part;
    return 1;
}

/* Events */

/* An event's fields and arguments as they are written; numbers are -1 if they are absent. collective: it has the
   argument `Collective name`; has_cat: its category is a text. */
typedef struct {
    slice ph, cat, name, ts, dur, pid, tid, args, stream, dims, types, values;
    int64_t correlation, external, old_external, device, seq, forward_thread, bytes, occupancy, wait_on, rank;
    int collective, has_cat;
} event;

static int is(slice text, const char *word, size_t length) {
    return text.length == length && !memcmp(text.at, word, length);
}
#define IS(text, word) is(text, word, sizeof(word) - 1)

/* Reads the value of the argument `key` at p into e, if the argument is one of those that are used; else skips it. */
static const char *read_argument(const char *p, const char *end, slice key, event *e) {
    int64_t *number = NULL;
    slice *raw = NULL;
    const char *begin = p;
    switch (key.length) {
    case 4: if (IS(key, "rank")) number = &e->rank; break;
    case 5: if (IS(key, "bytes")) number = &e->bytes; break;
    case 6: if (IS(key, "device")) number = &e->device; else if (IS(key, "stream")) raw = &e->stream; break;
    case 10: if (IS(key, "Input Dims")) raw = &e->dims; else if (IS(key, "Input type")) raw = &e->types; break;
    case 11:
        if (IS(key, "correlation")) number = &e->correlation;
        else if (IS(key, "External id")) number = &e->external;
        else if (IS(key, "external id")) number = &e->old_external;
        break;
    case 13: if (IS(key, "Fwd thread id")) number = &e->forward_thread; break;
    case 14: if (IS(key, "wait_on_stream")) number = &e->wait_on; break;
    case 15:
        if (IS(key, "Sequence number")) number = &e->seq;
        else if (IS(key, "Concrete Inputs")) raw = &e->values;
        else if (IS(key, "Collective name")) e->collective = 1;
        break;
    case 25: if (IS(key, "est. achieved occupancy %")) number = &e->occupancy; break;
    }
    p = read_value(p, end, 2);
    if (FAILED(p)) return p;
    slice text = {begin, (size_t)(p - begin), 0};
    if (number && !plain_int(text, number)) return odd;
    if (raw) {
        if (raw == &e->stream ? *begin != '"' && *begin != '-' && (*begin < '0' || *begin > '9') : *begin != '[')
            return odd;
        *raw = text;
    }
    return p;
}

/* Reads the object of arguments at p into e. */
static const char *read_args(const char *p, const char *end, event *e) {
    int closed;
    if (*p != '{') return odd;
    p = read_first(p, end, '}', &closed);
    while (!FAILED(p) && !closed) {
        slice key;
        p = read_key(p, end, &key);
        if (FAILED(p)) return p;
        p = read_argument(p, end, key, e);
        if (FAILED(p)) return p;
        p = read_next(p, end, '}', &closed);
    }
    return p;
}

/* Whether a process or thread id is written in the only possible way, so that equal ids are equal texts. */
static int plain_thread(slice text) {
    int64_t ignored;
    if (*text.at == '"') return !memchr(text.at, '\\', text.length);
    return plain_int(text, &ignored) && !IS(text, "-0");
}

/* Reads the value of the event's field `key` at p into e, if it is one of those that are used; else skips it. */
static const char *read_field(const char *p, const char *end, slice key, event *e) {
    const char *begin = p;
    slice *text = NULL;
    switch (key.length) {
    case 2: if (IS(key, "ph")) text = &e->ph; break;
    case 3: if (IS(key, "cat")) text = &e->cat; break;
    case 4: if (IS(key, "name")) text = &e->name; break;
    }
    if (text) {
        if (text == &e->cat) e->has_cat = *p == '"';
        if (text == &e->cat && *p == 'n') return read_word(p, end);
        return *p == '"' ? read_string(p, end, text) : odd;
    }
    if (IS(key, "args")) {
        if (e->args.at) return odd;                               /* twice: the caller decides which one counts */
        p = read_args(p, end, e);
        if (!FAILED(p)) { e->args.at = begin; e->args.length = (size_t)(p - begin); }
        return p;
    }
    int thread = IS(key, "pid") || IS(key, "tid");
    p = read_value(p, end, 1);
    if (FAILED(p)) return p;
    slice value = {begin, (size_t)(p - begin), 0};
    if (thread && !plain_thread(value)) return odd;
    if (IS(key, "ts")) e->ts = value;
    else if (IS(key, "dur")) e->dur = value;
    else if (IS(key, "pid")) e->pid = value;
    else if (IS(key, "tid")) e->tid = value;
    return p;
}

/* Reads the event at p into e, whose former content is discarded. */
static const char *read_event(const char *p, const char *end, event *e) {
    int closed;
    memset(e, 0, sizeof *e);
    e->correlation = e->external = e->old_external = e->device = e->seq = e->bytes = e->occupancy = e->wait_on =
        e->rank = -1;
    if (*p != '{') return odd;
    p = read_first(p, end, '}', &closed);
    while (!FAILED(p) && !closed) {
        slice key;
        p = read_key(p, end, &key);
        if (FAILED(p)) return p;
        p = read_field(p, end, key, e);
        if (FAILED(p)) return p;
        p = read_next(p, end, '}', &closed);
    }
    return p;
}

/* Rows */

/* Adds a row, one value per column, to a table of rows (HOST, DEVICE or WAITS). 0: no memory. */
static int push(scan *s, int table, const int64_t *values) {
    rows *kept = &s->kept[table];
    const uint8_t *width = widths[table];
    if (kept->count == kept->room) {
        size_t room = kept->room ? 2 * kept->room : 1024;
        for (int i = 0; i < columns_of[table]; i++) {
            char *moved = realloc(kept->column[i], room * width[i]);
            if (!moved) return 0;
            kept->column[i] = moved;
        }
        kept->room = room;
    }
    for (int i = 0; i < columns_of[table]; i++) {
        char *to = kept->column[i] + kept->count * width[i];
        if (width[i] == 8) memcpy(to, &values[i], 8);
        else if (width[i] == 4) { int32_t narrow = (int32_t)values[i]; memcpy(to, &narrow, 4); }
        else *to = (char)values[i];
    }
    kept->count++;
    return 1;
}

/* Stores the name and arguments of the collective in the last row of `table`, until the caller fetches them with
   scan_collectives. 0: no memory. */
static int remember(scan *s, int table, slice name, slice args) {
    if (!grow((void **)&s->met_row, &s->met_room, s->met_count + 1, sizeof(int64_t))) return 0;
    s->met_row[s->met_count++] = 2 * ((int64_t)s->kept[table].count - 1) + (table == DEVICE);
    return append(&s->met, name.at, name.length) && ended(&s->met) && append(&s->met, args.at, args.length) &&
           ended(&s->met);
}

/* The number of the text `first second` in a table. -2: too long; -1: no memory. */
static int64_t number_of_pair(intern *table, slice first, slice second) {
    char joined[256];
    if (first.length + second.length + 1 > sizeof joined) return -2;
    memcpy(joined, first.at, first.length);
    joined[first.length] = ' ';
    if (second.length) memcpy(joined + first.length + 1, second.at, second.length);
    return number_of(table, joined, first.length + second.length + 1);
}

/* The number of an op's shapes in a table: the JSON of its dims, types and values, separated by NUL. -1: it has none;
   -2: no memory. */
static int64_t shape_of(intern *table, const event *e) {
    slice parts[3] = {e->dims, e->types, e->values};
    char small[2048], *joined = small;
    size_t length = 2;
    if (!e->dims.at && !e->types.at && !e->values.at) return -1;
    for (int i = 0; i < 3; i++) length += parts[i].length;
    if (length > sizeof small && !(joined = malloc(length))) return -2;
    char *to = joined;
    for (int i = 0; i < 3; i++) {
        if (i) *to++ = 0;
        if (parts[i].length) memcpy(to, parts[i].at, parts[i].length);
        to += parts[i].length;
    }
    int64_t number = number_of(table, joined, length);
    if (joined != small) free(joined);
    return number < 0 ? -2 : number;
}

/* Whether text, with A to Z in lower case, is the word. */
static int lower_is(slice text, const char *word) {
    size_t length = strlen(word);
    if (text.length != length) return 0;
    for (size_t i = 0; i < length; i++) {
        char c = text.at[i];
        if (c >= 'A' && c <= 'Z') c = (char)(c + 32);
        if (c != word[i]) return 0;
    }
    return 1;
}

/* Whether text, with A to Z in lower case, is longer than the word and ends with it. */
static int lower_ends(slice text, const char *word) {
    size_t length = strlen(word);
    if (text.length <= length) return 0;
    slice end = {text.at + text.length - length, length, 0};
    return lower_is(end, word);
}

static int starts(slice text, const char *word) {
    size_t length = strlen(word);
    return text.length >= length && !memcmp(text.at, word, length);
}

/* Whether text has \\u escapes, which may be letters, so that it cannot be compared as it is. */
static int spelled(slice text) {
    if (!text.escaped) return 0;
    const char *p = text.at, *end = p + text.length;
    while ((p = memchr(p, '\\', (size_t)(end - p))) && p + 1 < end) {
        if (p[1] == 'u') return 1;
        p += 2;
    }
    return 0;
}

/* The kind (OP, CALL, NOTE or PYTHON) of host spans of a category; -1 if it is not one of the host. */
static int host_what(slice cat) {
    if (lower_is(cat, "cpu_op") || lower_is(cat, "operator")) return OP;
    if (lower_is(cat, "cuda_runtime") || lower_is(cat, "cuda_driver") || lower_is(cat, "runtime")) return CALL;
    if (lower_is(cat, "python_function")) return PYTHON;
    if (lower_is(cat, "user_annotation")) return NOTE;
    if (lower_ends(cat, "_runtime") || lower_ends(cat, "_driver")) return CALL;
    return -1;
}

/* The kind (KERNEL, COPY, MEMSET or DRAWN) of device work of a category; -1 if it is not one of a device. */
static int device_what(slice cat) {
    if (lower_is(cat, "kernel")) return KERNEL;
    if (lower_is(cat, "gpu_memcpy") || lower_is(cat, "memcpy")) return COPY;
    if (lower_is(cat, "gpu_memset") || lower_is(cat, "memset")) return MEMSET;
    if (lower_is(cat, "gpu_user_annotation")) return DRAWN;
    if (lower_ends(cat, "_kernel") || lower_is(cat, "mtia_ccp_events")) return KERNEL;
    if (lower_ends(cat, "_memcpy")) return COPY;
    if (lower_ends(cat, "_memset")) return MEMSET;
    if (lower_ends(cat, "_user_annotation")) return DRAWN;
    return -1;
}

/* Categories that hold no work, as rows.py has them. */
static int is_without_work(slice cat) {
    static const char *const words[] = {
        "trace", "overhead", "external_correlation", "cpu_instant_event", "cuda_event", "cuda_profiler_range",
        "mtia_counters", "xpu_scope_profiler", "__metadata", "ac2g", "fwdbwd", "async_cpu_to_gpu"};
    if (lower_ends(cat, "_sync")) return 1;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (lower_is(cat, words[i])) return 1;
    return 0;
}

/* Whether a name may be that of a collective's annotation, such as `nccl:all_reduce`; the caller checks it fully. */
static int may_speak_of_collective(slice name) {
    return memchr(name.at, ':', name.length < 8 ? name.length : 8) != NULL;
}

/* The number of the event's process in its table: its pid and the rank that its arguments state. -2: too long; -1: no
   memory. */
static int64_t process_of(scan *s, const event *e) {
    slice zero = {"0", 1, 0}, rank = {"", 0, 0};
    char digits[24];
    if (e->rank >= 0) {
        int64_t rest = e->rank;
        size_t used = sizeof digits;
        do digits[--used] = (char)('0' + rest % 10); while (rest /= 10);
        rank.at = digits + used; rank.length = sizeof digits - used;
    }
    return number_of_pair(&s->interned[PROCESSES], e->pid.at ? e->pid : zero, rank);
}

/* Adds the row of an event to the table of its category. Returns 1 if it was added or has none, 0 if the caller must
   read the event, -1 if memory is exhausted. */
static int keep(scan *s, const event *e) {
    int64_t start, length = 0;
    if (spelled(e->ph)) return 0;
    if (IS(e->ph, "M"))                                           /* the caller reads the texts of processes */
        return !e->name.at || !(spelled(e->name) || IS(e->name, "process_name") || IS(e->name, "process_labels"));
    if (IS(e->ph, "i"))                                           /* the caller reads allocations and frees */
        return !e->name.at || !(spelled(e->name) || IS(e->name, "[memory]"));
    if (!IS(e->ph, "X")) return 1;
    if (spelled(e->cat)) return 0;
    slice cat = {"", 0, 0};
    if (e->has_cat) cat = e->cat;
    if (!cat.length && !e->ts.at) return 1;                       /* neither a category nor a time: no work */
    int what = host_what(cat), on_device = what < 0, waits = lower_is(cat, "cuda_sync");
    if (on_device) what = device_what(cat);
    if (what < 0 && !waits) {
        if (is_without_work(cat)) return 1;
        what = UNKNOWN;
    }
    if (!e->ts.at || !plain_ns(e->ts, &start) || (e->dur.at && !plain_ns(e->dur, &length))) return 0;
    if (start >= FARTHEST || length >= FARTHEST) return 0;
    if (!e->name.at || spelled(e->name)) return 0;
    if (e->device > INT32_MAX || e->device < -1 || e->rank > INT32_MAX) return 0;

    slice zero = {"0", 1, 0}, lane_of = e->stream.at ? e->stream : e->tid;
    int64_t lane = -1, process = -1;
    if (!lane_of.at) lane_of = zero;
    if (on_device || (e->rank >= 0 && (what == OP || what == CALL))) process = process_of(s, e);
    if (process < -1) return 0;
    if (on_device) lane = number_of(&s->interned[LANES], lane_of.at, lane_of.length);
    if (on_device && (lane < 0 || process < 0)) return -1;
    int64_t name = number_of(&s->interned[NAMES], e->name.at, e->name.length);
    if (name < 0) return -1;
    if (waits) {
        if (e->wait_on < 0 || !IS(e->name, "Stream Wait Event")) return 1;
        char on[24];
        int64_t rest = e->wait_on;
        size_t used = sizeof on;
        do on[--used] = (char)('0' + rest % 10); while (rest /= 10);
        slice other = {on + used, sizeof on - used, 0};
        int64_t awaited = number_of(&s->interned[LANES], other.at, other.length);
        int64_t row[W_COLUMNS] = {e->correlation, e->device, lane, awaited, process};
        return awaited >= 0 && push(s, WAITS, row) ? 1 : -1;
    }
    if (on_device) {
        int64_t external = e->external >= 0 ? e->external : e->old_external;
        int64_t occupancy = e->occupancy < -1 || e->occupancy > 100 ? -1 : e->occupancy;
        int64_t category = -1;
        if (what == UNKNOWN) {
            category = number_of(&s->interned[CATEGORIES], cat.at, cat.length);
            if (category < 0) return -1;
            category = 2 * category + (e->stream.at != NULL);     /* the lowest bit: it names a stream */
        }
        int64_t row[D_COLUMNS] = {start, start + length, name, lane, e->device, what, e->correlation, external,
                                  e->bytes, occupancy, process, category};
        if (!push(s, DEVICE, row)) return -1;
        return what == KERNEL && e->collective && !remember(s, DEVICE, e->name, e->args) ? -1 : 1;
    }
    /* In 2021 annotations were operators too. */
    if (what == OP && (starts(e->name, "Optimizer.") || starts(e->name, "enumerate(DataLoader)"))) what = NOTE;
    int64_t thread = number_of_pair(&s->interned[THREADS], e->pid.at ? e->pid : zero, e->tid.at ? e->tid : zero);
    int64_t shape = what == OP ? shape_of(&s->interned[SHAPES], e) : -1;
    if (thread < 0 || shape == -2) return thread == -2 ? 0 : -1;
    int64_t row[H_COLUMNS] = {start, start + length, name, thread, what,
                              what == CALL ? e->correlation : -1, what == OP ? e->external : -1,
                              what == OP ? e->seq : -1, what == OP && e->forward_thread > 0, shape};
    if (!push(s, HOST, row)) return -1;
    return what == NOTE && may_speak_of_collective(e->name) && !remember(s, HOST, e->name, e->args) ? -1 : 1;
}

/* Exported functions */

/* Changes with the signature or the meaning of any exported function, here or in nest.c, so that no caller uses an old
   one. */
int native_version(void) { return 6; }

scan *scan_new(void) { return calloc(1, sizeof(scan)); }

static void drop(intern *table) { free(table->text); free(table->ends); free(table->slots); }

void scan_free(scan *s) {
    if (!s) return;
    for (int i = 0; i < TABLES; i++) drop(&s->interned[i]);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDEST; j++) free(s->kept[i].column[j]);
    drop(&s->met);
    free(s->met_row);
    free(s);
}

/* Reads the events of text[at:length], which begins after the array's bracket, a comma or an event. Returns the
   position after the last event that was read; *why: NEED_MORE, CLOSED, ODD or NO_MEMORY; adds the number of events that were
   read to *entries. */
size_t scan_feed(scan *s, const char *text, size_t at, size_t length, int *why, int64_t *entries) {
    const char *p = text + at, *end = text + length, *done = p;
    for (;;) {
        event e;
        while (p < end && (is_space(*p) || *p == ',')) p = skip_space(p + 1, end);
        done = p;
        *why = NEED_MORE;
        if (p >= end) break;
        if (*p == ']') { done = p + 1; *why = CLOSED; break; }
        p = read_event(p, end, &e);
        if (p == need_more) break;
        if (p == odd) { *why = ODD; break; }
        int kept = keep(s, &e);
        if (kept < 1) { *why = kept ? NO_MEMORY : ODD; break; }
        (*entries)++;
    }
    return (size_t)(done - text);
}

int64_t scan_intern(scan *s, int table, const char *at, size_t length) {
    return number_of(&s->interned[table], at, length);
}

int scan_push(scan *s, int table, const int64_t *values) { return push(s, table, values); }

size_t scan_count(const scan *s, int table) { return s->kept[table].count; }

const void *scan_column(const scan *s, int table, int column) { return s->kept[table].column[column]; }

void scan_release(scan *s, int table, int column) {
    free(s->kept[table].column[column]);
    s->kept[table].column[column] = NULL;
}

size_t scan_texts(const scan *s, int table, const char **text, const size_t **ends) {
    *text = s->interned[table].text; *ends = s->interned[table].ends;
    return s->interned[table].count;
}

/* Fetches the collectives since the last call, and returns their number. *row: for each, 2 * its row in its table, + 1
   for device work; *text, *ends: two texts (name, args) for each, and the position after each text. The arrays are
   valid until the next event is read. */
size_t scan_collectives(scan *s, const int64_t **row, const char **text, const size_t **ends) {
    size_t count = s->met_count;
    *row = s->met_row; *text = s->met.text; *ends = s->met.ends;
    s->met_count = s->met.count = s->met.used = 0;
    return count;
}
