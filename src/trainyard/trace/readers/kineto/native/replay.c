/* Replays a dependency graph: see replay_graph in trace/whatif/dependency_graph.py, which does the same and calls this
   if it was built. An op is a recorded operation; it starts when the ops that it needs have ended. */

#include <stddef.h>
#include <stdint.h>

/* Computes start and stop (ns) of n ops, by op number.

   order: op numbers in topological order; the op at position i depends on the ops need[row] for rows first[i] to
   first[i + 1] - 1, and may start weight[row] ns after the end of each (base, if it depends on none) and lag[op] ns
   later; it takes length[op] ns. Unsigned sums: a sum that overflows wraps around. */
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
