//! Finding where things end in JSON text. It takes JSON for well-formed: what is not will not be rendered the same, or is refused by
//! whoever looks closer.

/// The first byte from `at` on that is no space.
pub(super) fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The end of the string whose opening quote is at `at`.
pub(super) fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The end of the bytes from `at` on that numbers are made of.
pub(super) fn number_end(bytes: &[u8], mut at: usize) -> usize {
    while matches!(
        bytes.get(at),
        Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
    ) {
        at += 1;
    }
    at
}

/// The end of the value that begins at `at`.
pub(super) fn value_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => string_end(bytes, at),
        b'{' | b'[' => {
            let mut depth = 0_usize;
            let mut at = at;
            loop {
                match bytes.get(at)? {
                    b'"' => {
                        at = string_end(bytes, at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        _ => {
            let is_end =
                |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
            let length = bytes.get(at..)?.iter().position(is_end)?;
            (length > 0).then_some(at + length)
        }
    }
}

/// Whether a well-formed value nests at most so many levels deep.
pub(super) fn nests_within(value: &[u8], levels: usize) -> bool {
    // Both ends of a level take a byte.
    if value.len() / 2 <= levels {
        return true;
    }
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = value.get(at) {
        match byte {
            b'"' => match string_end(value, at) {
                Some(end) => {
                    at = end;
                    continue;
                }
                None => return false,
            },
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > levels {
            return false;
        }
        at += 1;
    }
    true
}

/// The key whose opening quote is at `at`, as it stands between its quotes, and where its value begins. `None` for keys that are not
/// shredded: escaped, long, or with control characters.
pub(super) fn key(payload: &str, at: usize) -> Option<(&str, usize)> {
    let bytes = payload.as_bytes();
    let end = string_end(bytes, at)?;
    let key = payload.get(at + 1..end - 1)?;
    let plain = key.len() <= MAX_KEY_BYTES && key.bytes().all(|byte| byte >= 0x20 && byte != b'\\');
    let colon = skip_space(bytes, end);
    (plain && bytes.get(colon) == Some(&b':')).then(|| (key, skip_space(bytes, colon + 1)))
}

const MAX_KEY_BYTES: usize = 128;

/// What follows a field of an object.
pub(super) enum After {
    /// Another field, whose key is here.
    Field(usize),
    /// The object's end.
    End(usize),
}

/// What follows the value that ended at `at`.
pub(super) fn after_value(bytes: &[u8], at: usize) -> Option<After> {
    let at = skip_space(bytes, at);
    match bytes.get(at)? {
        b',' => Some(After::Field(skip_space(bytes, at + 1))),
        b'}' => Some(After::End(at + 1)),
        _ => None,
    }
}

/// What the object begins with whose brace is at `at`.
pub(super) fn first_field(bytes: &[u8], at: usize) -> Option<After> {
    if bytes.get(at) != Some(&b'{') {
        return None;
    }
    let at = skip_space(bytes, at + 1);
    match bytes.get(at)? {
        b'}' => Some(After::End(at + 1)),
        _ => Some(After::Field(at)),
    }
}
