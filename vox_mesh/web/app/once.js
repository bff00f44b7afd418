/** Keys of requests: one that is sent again, because its answer was lost, takes effect once. */

const DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/** Return a new key: a ULID. */
export function newKey() {
  let [left, time] = [Date.now(), ""];
  for (let at = 0; at < 10; at += 1) {
    time = DIGITS[left % 32] + time;
    left = Math.floor(left / 32);
  }
  return time + [...crypto.getRandomValues(new Uint8Array(16))].map((each) => DIGITS[each % 32]).join("");
}

/** Return a function that returns the key of a content: the same one until another content is sent.
 * @returns {(content: unknown) => string} */
export function keyed() {
  let [last, key] = ["", ""];
  return (content) => {
    const text = JSON.stringify(content);
    if (text !== last || key === "") [last, key] = [text, newKey()];
    return key;
  };
}
