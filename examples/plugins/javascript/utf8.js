// QuickJS has neither TextDecoder nor TextEncoder.

/** The text of bytes; throws where they are no UTF-8. */
export function decode(bytes) {
  const parts = [];
  // In pieces: a call takes only so many arguments.
  for (let at = 0; at < bytes.length; at += 8192) {
    parts.push(String.fromCharCode.apply(null, bytes.subarray(at, at + 8192)));
  }
  return decodeURIComponent(escape(parts.join("")));
}

/** The UTF-8 of a text. */
export function encode(text) {
  const escaped = unescape(encodeURIComponent(text));
  const bytes = new Uint8Array(escaped.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = escaped.charCodeAt(at);
  return bytes;
}
