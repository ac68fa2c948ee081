/* Replays a dependency graph: see replay_graph in trace/whatif/dependency_graph.py, which does the same. */

#include <stddef.h>
#include <stdint.h>

/* Start and stop of n ops. order: op numbers in topological order; the needs of the op at position i are rows first[i]
   to first[i + 1] of need and weight. Unsigned sums: a sum that overflows wraps around. */
void replay(size_t n, int64_t base, const int64_t *order, const int64_t *first, const int64_t *need,
            const int64_t *weight, const int64_t *length, const int64_t *lag, int64_t *start, int64_t *stop) {
    for (size_t i = 0; i < n; i++) {
        int64_t op = order[i], ready = base;
        for (int64_t row = first[i]; row < first[i + 1]; row++) {
            int64_t until = (int64_t)((uint64_t)stop[need[row]] + (uint64_t)weight[row]);
            if (row == first[i] || until > ready) ready = until;
        }
        start[op] = (int64_t)((uint64_t)ready + (uint64_t)lag[op]);
        stop[op] = (int64_t)((uint64_t)start[op] + (uint64_t)length[op]);
    }
}
