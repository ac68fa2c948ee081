// The part of a text that differs from another one.

/** A text as [beginning, middle, end]: it shares the beginning and the end with `base`, each as long as possible; the middle is empty if they are equal. */
export function differingPart(text, base) {
  const shortest = Math.min(text.length, base.length);
  let start = 0;
  while (start < shortest && text[start] === base[start]) start += 1;
  let end = 0;
  while (end < shortest - start && text.at(-1 - end) === base.at(-1 - end)) end += 1;
  return [text.slice(0, start), text.slice(start, text.length - end), text.slice(text.length - end)];
}
