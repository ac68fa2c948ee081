/* Scans the events of a chrome trace into columns.

   It takes only what it is sure of: strict JSON, plain decimal stamps, arguments of the expected types. At anything
   else it stops in front of the event, and the caller reads that one in its own tolerant way. So whatever it accepts
   means the same as in event.py, and whatever it does not accept costs time and nothing else. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { NEED_MORE, CLOSED, ODD, NO_MEMORY };                       /* why scan_feed stopped */
enum { NAMES, THREADS, LANES, SHAPES, PROCESSES, CATEGORIES, TABLES };   /* interned texts */
enum { KERNEL, COPY, MEMSET, DRAWN, UNKNOWN };                    /* Work.what; UNKNOWN: of an unknown category */
enum { OP, CALL, NOTE, PYTHON };                                  /* Host.what */
enum { H_START, H_STOP, H_NAME, H_THREAD, H_WHAT, H_CORRELATION, H_EXTERNAL, H_SEQ, H_BACKWARD, H_SHAPE, H_COLUMNS };
enum { D_START, D_STOP, D_NAME, D_LANE, D_DEVICE, D_WHAT, D_CORRELATION, D_EXTERNAL, D_BYTES, D_OCCUPANCY,
       D_PROCESS, D_CATEGORY, D_COLUMNS };
enum { W_CORRELATION, W_DEVICE, W_LANE, W_ON, W_PROCESS, W_COLUMNS };
enum { HOST, DEVICE, WAITS, ROWS };
#define WIDEST 12
#define DEEPEST 64
#define FARTHEST (1ll << 61)

static const uint8_t widths[ROWS][WIDEST] = {
    {8, 8, 4, 4, 1, 8, 8, 8, 1, 4}, {8, 8, 4, 4, 4, 1, 8, 8, 8, 1, 4, 4}, {8, 4, 4, 4, 4}};
static const uint8_t columns_of[ROWS] = {H_COLUMNS, D_COLUMNS, W_COLUMNS};

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
    intern met;                                                   /* name and args of each collective, in turn */
    int64_t *met_row; size_t met_count, met_room;                 /* row * 2 + (1 on a device) */
    int no_memory;
} scan;

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

/* JSON. Each reader takes the place where its value begins and returns the place after it, or one of these. */

static const char need_more[1], odd[1];
#define FAILED(p) ((p) == need_more || (p) == odd)

static inline int is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

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

/* Length of the UTF-8 sequence at p, 0 where it is none, -1 where the text ends inside it (RFC 3629, section 4). */
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

/* Bytes that end the quick walk through a string: quote, backslash, control characters, anything not ASCII. */
static const uint8_t stops[256] = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    ['"'] = 1, ['\\'] = 1,
    [128] = 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* The string that begins at p (a quote); `found` is what stands between the quotes, escapes and all. */
static const char *read_string(const char *p, const char *end, slice *found) {
    const char *begin = ++p;
    found->escaped = 0;
    for (;;) {
#ifdef __SSE2__
        /* As signed bytes, control characters and all that is not ASCII are less than a space. */
        while (end - p >= 16) {
            __m128i text = _mm_loadu_si128((const __m128i *)p);
            __m128i stop = _mm_or_si128(_mm_cmplt_epi8(text, _mm_set1_epi8(' ')),
                                        _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')),
                                                     _mm_cmpeq_epi8(text, _mm_set1_epi8('\\'))));
            unsigned found = (unsigned)_mm_movemask_epi8(stop);
            if (found) { p += __builtin_ctz(found); break; }
            p += 16;
        }
#endif
        while (p < end && !stops[(uint8_t)*p]) p++;
        if (p >= end) return need_more;
        if (*p == '"') { found->at = begin; found->length = (size_t)(p - begin); return p + 1; }
        if ((uint8_t)*p >= 0x80) {
            int wide = utf8(p, end);
            if (wide < 1) return wide ? need_more : odd;
            p += wide;
            continue;
        }
        if (*p != '\\') return odd;                               /* a bare control character */
        found->escaped = 1;
        if (end - p < 6) return need_more;
        if (p[1] == 'u') {
            if (!is_hex(p[2]) || !is_hex(p[3]) || !is_hex(p[4]) || !is_hex(p[5])) return odd;
            if ((p[2] | 32) == 'd') return odd;                   /* maybe half of a surrogate pair */
            p += 6;
        } else if (memchr("\"\\/bfnrt", p[1], 8)) p += 2;
        else return odd;
    }
}

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

static const char *read_word(const char *p, const char *end) {
    const char *word = *p == 't' ? "true" : *p == 'f' ? "false" : *p == 'n' ? "null" : NULL;
    if (!word) return odd;
    size_t length = strlen(word);
    if ((size_t)(end - p) < length) return need_more;
    return memcmp(p, word, length) ? odd : p + length;
}

static const char *read_value(const char *p, const char *end, int depth);

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

/* After a value in an object or array: the next one, or past the closing bracket with *closed set. */
static const char *read_next(const char *p, const char *end, char close, int *closed) {
    p = skip_space(p, end);
    if (p >= end) return need_more;
    *closed = *p == close;
    if (*closed) return p + 1;
    if (*p != ',') return odd;
    p = skip_space(p + 1, end);
    return p >= end ? need_more : p;
}

/* The first member or element, or past the closing bracket of an empty one. */
static const char *read_first(const char *p, const char *end, char close, int *closed) {
    p = skip_space(p + 1, end);
    if (p >= end) return need_more;
    *closed = *p == close;
    return *closed ? p + 1 : p;
}

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

static const char *read_value(const char *p, const char *end, int depth) {
    slice ignored;
    if (p >= end) return need_more;
    if (*p == '"') return read_string(p, end, &ignored);
    if (*p == '{' || *p == '[') return read_nested(p, end, depth);
    if (*p == '-' || (*p >= '0' && *p <= '9')) return read_number(p, end);
    return read_word(p, end);
}

/* Numbers */

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

/* Decimal microseconds, quoted or not, to ns; digits past the nanosecond are left off. */
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

typedef struct {
    slice ph, cat, name, ts, dur, pid, tid, args, stream, dims, types, values;
    int64_t correlation, external, old_external, device, seq, forward_thread, bytes, occupancy, wait_on, rank;
    int collective, has_cat;
} event;

static int is(slice text, const char *word, size_t length) {
    return text.length == length && !memcmp(text.at, word, length);
}
#define IS(text, word) is(text, word, sizeof(word) - 1)

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

/* A number or text that is spelled in one way only. */
static int plain_thread(slice text) {
    int64_t ignored;
    if (*text.at == '"') return !memchr(text.at, '\\', text.length);
    return plain_int(text, &ignored) && !IS(text, "-0");
}

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
        if (e->args.at) return odd;                               /* twice: which one counts is not said here */
        p = read_args(p, end, e);
        if (!FAILED(p)) { e->args.at = begin; e->args.length = (size_t)(p - begin); }
        return p;
    }
    int thread = IS(key, "pid") || IS(key, "tid");
    p = read_value(p, end, 1);
    if (FAILED(p)) return p;
    slice found = {begin, (size_t)(p - begin), 0};
    if (thread && !plain_thread(found)) return odd;
    if (IS(key, "ts")) e->ts = found;
    else if (IS(key, "dur")) e->dur = found;
    else if (IS(key, "pid")) e->pid = found;
    else if (IS(key, "tid")) e->tid = found;
    return p;
}

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

/* Remembers the collective that the last row of `table` speaks of, until scan_collective asks. */
static int remember(scan *s, int table, slice name, slice args) {
    if (!grow((void **)&s->met_row, &s->met_room, s->met_count + 1, sizeof(int64_t))) return 0;
    s->met_row[s->met_count++] = 2 * ((int64_t)s->kept[table].count - 1) + (table == DEVICE);
    return append(&s->met, name.at, name.length) && ended(&s->met) && append(&s->met, args.at, args.length) &&
           ended(&s->met);
}

static int64_t number_of_pair(intern *table, slice first, slice second) {
    char joined[256];
    if (first.length + second.length + 1 > sizeof joined) return -2;
    memcpy(joined, first.at, first.length);
    joined[first.length] = ' ';
    if (second.length) memcpy(joined + first.length + 1, second.at, second.length);
    return number_of(table, joined, first.length + second.length + 1);
}

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

/* Whether letters may stand in it as \\u escapes, so that it cannot be compared as it is. */
static int spelled(slice text) {
    if (!text.escaped) return 0;
    const char *p = text.at, *end = p + text.length;
    while ((p = memchr(p, '\\', (size_t)(end - p))) && p + 1 < end) {
        if (p[1] == 'u') return 1;
        p += 2;
    }
    return 0;
}

static int host_what(slice cat) {
    if (lower_is(cat, "cpu_op") || lower_is(cat, "operator")) return OP;
    if (lower_is(cat, "cuda_runtime") || lower_is(cat, "cuda_driver") || lower_is(cat, "runtime")) return CALL;
    if (lower_is(cat, "python_function")) return PYTHON;
    if (lower_is(cat, "user_annotation")) return NOTE;
    if (lower_ends(cat, "_runtime") || lower_ends(cat, "_driver")) return CALL;
    return -1;
}

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

/* `nccl:all_reduce` and its like; the caller looks closer. */
static int may_speak_of_collective(slice name) {
    return memchr(name.at, ':', name.length < 8 ? name.length : 8) != NULL;
}

/* The number of the event's process: its pid and the rank that its arguments state. -2: too long; -1: no memory. */
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

/* Keeps what an event says. 1: done, or nothing to keep; 0: odd; -1: no memory. */
static int keep(scan *s, const event *e) {
    int64_t start, length = 0;
    if (spelled(e->ph)) return 0;
    if (IS(e->ph, "M"))                                           /* the caller reads the texts of processes */
        return !e->name.at || !(spelled(e->name) || IS(e->name, "process_name") || IS(e->name, "process_labels"));
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
            category = 2 * category + (e->stream.at != NULL);
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

/* Changes with the signature of any exported function, here or in nest.c, so that no caller uses an old one. */
int native_version(void) { return 5; }

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

/* Reads events of text[at:length], which begins after the array's bracket, a comma or an event. Returns up to where it
   is done; *why says why it stopped there; *entries counts the events it has read. */
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

/* The collectives met since the last call: their rows, and two texts (name, args) each. */
size_t scan_collectives(scan *s, const int64_t **row, const char **text, const size_t **ends) {
    size_t count = s->met_count;
    *row = s->met_row; *text = s->met.text; *ends = s->met.ends;
    s->met_count = s->met.count = s->met.used = 0;
    return count;
}
