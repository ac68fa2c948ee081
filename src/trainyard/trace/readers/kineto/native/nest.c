/* What nesting.py and context.py compute row by row in Python: the parent of each span, and what it inherits. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OP, CALL, NOTE, PYTHON };                                  /* Host.what */
#define HIGHEST 256                                               /* as nesting.py's */

typedef struct { int32_t *rows; size_t count, room; } stack;

/* Parents of rows sorted by (start, longest first), and stops clamped to the parent's. 0: no memory. */
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

/* Properties of a name: the phase that it sets, whether it is the autograd engine's or a module, its op class and
   cause; -1 for none. */
typedef struct { const int8_t *fixed, *engine, *module, *op_class, *cause; } facts;

typedef struct { int64_t seq; int32_t module; } seen;

static seen *place_of(seen *table, size_t room, int64_t seq) {
    /* Where the table lies differs from run to run, so no file can choose numbers that fall into one place. */
    uint64_t mixed = ((uint64_t)seq ^ (uintptr_t)table >> 4) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 29) * 0x94d049bb133111ebull;
    size_t place = (mixed ^ mixed >> 32) & (room - 1);
    while (table[place].seq >= 0 && table[place].seq != seq) place = (place + 1) & (room - 1);
    return &table[place];
}

int inherit(size_t count, const int32_t *name, const int8_t *what, const int32_t *parent, const int64_t *seq,
            const int8_t *backward, const int8_t *again, const int8_t *evaluated, const facts *of,
            const int8_t *phases, int knows_autograd, int8_t *phase, int32_t *module, int8_t *op_class, int8_t *cause) {
    const int8_t FORWARD = phases[0], BACKWARD = phases[1], RECOMPUTE = phases[2], OPTIMIZER = phases[3],
                 OTHER = phases[4];
    size_t room = 1024, numbered = 0;
    for (size_t row = 0; row < count; row++) numbered += what[row] == OP && seq[row] >= 0;
    while (room < 2 * numbered) room *= 2;
    seen *table = malloc(room * sizeof(seen));
    if (!table) return 0;
    for (size_t place = 0; place < room; place++) table[place].seq = -1;
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
        int says = of->module[own] && (what[row] == NOTE || what[row] == PYTHON);
        module[row] = says ? own : up >= 0 ? module[up] : -1;
        if (op && seq[row] >= 0) {
            seen *known = place_of(table, room, seq[row]);
            if (phase[row] == FORWARD) { known->seq = seq[row]; known->module = module[row]; }
            else if (backward[row] && known->seq >= 0 && known->module >= 0) module[row] = known->module;
        }
        op_class[row] = op && of->op_class[own] >= 0 ? of->op_class[own] : up >= 0 ? op_class[up] : -1;
        cause[row] = of->cause[own] >= 0 ? of->cause[own] : up >= 0 ? cause[up] : -1;
    }
    free(table);
    return 1;
}
