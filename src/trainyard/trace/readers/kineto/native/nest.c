/* Parents of host spans, and the properties that spans inherit from their parents; the same as in readers/nesting.py
   and classify/context.py, which call these functions if they were built.

   A row is that of a host span in the columns of HostSpans; parents have lower rows than their children. The numbers of
   phases, op classes and causes are those of context.py; -1 stands for none. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OP, CALL, NOTE, PYTHON };                                  /* HostSpans.what, as in events.py */
#define HIGHEST 256                                               /* _MAX_CANDIDATES of nesting.py */

typedef struct { int32_t *rows; size_t count, room; } stack;      /* rows of open spans, innermost last */

/* Computes the parents of spans sorted by (start, longest first): for each row, the innermost span of its thread that
   is still open and ends no earlier, up to tick ns of rounding. Clamps stop to the parent's, in place.

   count: number of rows; start, stop: ns; thread: from 0 to threads; parent: filled with rows, -1 for none. Only the
   HIGHEST innermost open spans are considered. Returns 0 if memory is exhausted, else 1. */
int nest(size_t count, const int64_t *start, int64_t *stop, const int32_t *thread, int32_t threads, int64_t tick,
         int32_t *parent) {
    stack *open_on = calloc((size_t)threads + 1, sizeof(stack));
    int good = open_on != NULL;
    for (size_t row = 0; good && row < count; row++) {
        stack *open = &open_on[thread[row]];
        while (open->count && stop[open->rows[open->count - 1]] <= start[row]) open->count--;
        parent[row] = -1;
        size_t highest = open->count > HIGHEST ? open->count - HIGHEST : 0;
        for (size_t above = open->count; above-- > highest;) {
            int64_t outer = stop[open->rows[above]];
            if (stop[row] <= outer + tick) {
                parent[row] = open->rows[above];
                if (stop[row] > outer) stop[row] = outer;
                break;
            }
        }
        if (open->count == open->room) {
            size_t room = open->room ? 2 * open->room : 64;
            int32_t *moved = realloc(open->rows, room * sizeof(int32_t));
            if (!moved) { good = 0; break; }
            open->rows = moved; open->room = room;
        }
        open->rows[open->count++] = (int32_t)row;
    }
    for (int32_t lane = 0; open_on && lane <= threads; lane++) free(open_on[lane].rows);
    free(open_on);
    return good;
}

/* The classification of each name without its context (NameFacts in Python), by number of the name: the phase that an
   annotation of this name sets, whether it is the autograd engine's, whether it is a module, its op class and its
   cause. */
typedef struct { const int8_t *fixed, *engine, *module, *op_class, *cause; } facts;

/* An entry of a hash table: the module of the forward op with this autograd sequence number; seq is -1 if it is
   free. */
typedef struct { int64_t seq; int32_t module; } forward_op;

/* The entry with this sequence number, or the free one in which it belongs. room: size of the table, a power of two of
   which at most half is used; collisions are resolved by the next entries. */
static forward_op *find_entry(forward_op *table, size_t room, int64_t seq) {
    /* The table's address differs between runs, so that no file can choose sequence numbers that collide. The
       multipliers and shifts mix the bits. */
    uint64_t mixed = ((uint64_t)seq ^ (uintptr_t)table >> 4) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 29) * 0x94d049bb133111ebull;
    size_t slot = (mixed ^ mixed >> 32) & (room - 1);
    while (table[slot].seq >= 0 && table[slot].seq != seq) slot = (slot + 1) & (room - 1);
    return &table[slot];
}

/* Determines phase, module (number of a name), op class and cause of each of count rows, from its own name and from its
   parent's.

   name, what, parent, seq, backward: columns of HostSpans; again: whether a row is recomputed if it is inside the
   backward pass; evaluated: whether it is work of a closure inside an optimizer step; of: the classification of names;
   phases: the numbers of forward, backward, recompute, optimizer, other; knows_autograd: whether the file has sequence
   numbers. phase, module, op_class, cause: filled. Returns 0 if memory is exhausted, else 1. */
int inherit(size_t count, const int32_t *name, const int8_t *what, const int32_t *parent, const int64_t *seq,
            const int8_t *backward, const int8_t *again, const int8_t *evaluated, const facts *of,
            const int8_t *phases, int knows_autograd, int8_t *phase, int32_t *module, int8_t *op_class, int8_t *cause) {
    const int8_t FORWARD = phases[0], BACKWARD = phases[1], RECOMPUTE = phases[2], OPTIMIZER = phases[3],
                 OTHER = phases[4];
    size_t room = 1024, numbered = 0;
    for (size_t row = 0; row < count; row++) numbered += what[row] == OP && seq[row] >= 0;
    while (room < 2 * numbered) room *= 2;
    forward_op *table = malloc(room * sizeof(forward_op));
    if (!table) return 0;
    for (size_t slot = 0; slot < room; slot++) table[slot].seq = -1;
    for (size_t row = 0; row < count; row++) {
        int32_t own = name[row], up = parent[row];
        int op = what[row] == OP;
        int8_t above = up >= 0 ? phase[up] : -1;
        if (evaluated[row] && above == OPTIMIZER) above = -1;     /* a closure that the optimizer evaluates */
        if (of->fixed[own] >= 0 && what[row] == NOTE) phase[row] = of->fixed[own];
        else if (op && (of->engine[own] || backward[row])) phase[row] = BACKWARD;
        else if (op && (above == -1 || above == OTHER) && (seq[row] >= 0 || !knows_autograd))
            phase[row] = above == OTHER ? above : FORWARD;
        else if (above == BACKWARD && again[row]) phase[row] = RECOMPUTE;
        else phase[row] = above;
        int is_module = of->module[own] && (what[row] == NOTE || what[row] == PYTHON);
        module[row] = is_module ? own : up >= 0 ? module[up] : -1;
        /* A backward op has the module of the forward op with its sequence number. */
        if (op && seq[row] >= 0) {
            forward_op *entry = find_entry(table, room, seq[row]);
            if (phase[row] == FORWARD) { entry->seq = seq[row]; entry->module = module[row]; }
            else if (backward[row] && entry->seq >= 0 && entry->module >= 0) module[row] = entry->module;
        }
        op_class[row] = op && of->op_class[own] >= 0 ? of->op_class[own] : up >= 0 ? op_class[up] : -1;
        cause[row] = of->cause[own] >= 0 ? of->cause[own] : up >= 0 ? cause[up] : -1;
    }
    free(table);
    return 1;
}
