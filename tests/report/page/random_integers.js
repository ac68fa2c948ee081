/** A generator of reproducible random integers below `limit` (Park and Miller). */
export function randomIntegers(seed) {
  let state = seed;
  return (limit) => {
    state = (state * 48271) % 2147483647;
    return state % limit;
  };
}
