//! JSON strings, unescaped to be stored and escaped again to be rendered.

use super::form::Leaf;
use super::scan;

/// Reads the string whose opening quote is at `at`; `None` unless [`write`] would give it back. With `ascii` as producers write it
/// that escape all but ASCII.
pub(super) fn read(
    payload: &str,
    at: usize,
    unescaped: &mut String,
    ascii: bool,
) -> Option<(Leaf, usize)> {
    let bytes = payload.as_bytes();
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let from = at + 1;
    let mut to = from;
    while bytes.get(to).is_some_and(|byte| is_plain(*byte, ascii)) {
        to += 1;
    }
    match bytes.get(to)? {
        b'"' => Some((Leaf::Text(from, to), to + 1)),
        b'\\' => {
            let end = scan::string_end(bytes, at)?;
            let text = payload.get(from..end - 1)?;
            let start = unescaped.len();
            unescape(text, unescaped)?;
            let mut again = Vec::with_capacity(text.len());
            escape(unescaped.get(start..)?, &mut again, ascii);
            (again == text.as_bytes()).then_some((Leaf::Unescaped(start, unescaped.len()), end))
        }
        _ => None,
    }
}

/// Writes a string with its quotes.
pub(super) fn write(text: &str, out: &mut Vec<u8>, ascii: bool) {
    out.push(b'"');
    if is_all_plain(text.as_bytes(), ascii) {
        out.extend_from_slice(text.as_bytes());
    } else {
        escape(text, out, ascii);
    }
    out.push(b'"');
}

/// Texts up to this long lie in their view, of which they are the upper bytes.
const INLINE_BYTES: u32 = 12;

/// Writes the string that a view of Arrow's `Utf8View` holds itself: most are short, and are checked and moved as one number.
/// `false` where it is too long for that, or has what must be escaped.
#[inline]
pub(super) fn write_inline(view: u128, out: &mut Vec<u8>, ascii: bool) -> bool {
    const QUOTE: u128 = b'"' as u128;
    let [a, b, c, d, ..] = view.to_le_bytes();
    let length = u32::from_le_bytes([a, b, c, d]);
    if length > INLINE_BYTES {
        return false;
    }
    let text = view >> 32;
    if !is_all_plain_of_16(text | (each(b' ') << (8 * length)), ascii) {
        return false;
    }
    let quoted = QUOTE | (text << 8) | (QUOTE << (8 * (length + 1)));
    let start = out.len();
    out.extend_from_slice(&quoted.to_le_bytes());
    out.truncate(start + length as usize + 2);
    true
}

/// Sixteen times the same byte.
const fn each(byte: u8) -> u128 {
    u128::from_ne_bytes([byte; 16])
}

/// [`is_plain`] of sixteen bytes. After "Bit Twiddling Hacks" by Sean Eron Anderson, "Determine if a word has a byte less than n".
const fn is_all_plain_of_16(bytes: u128, ascii: bool) -> bool {
    const fn less(bytes: u128, than: u8) -> u128 {
        bytes.wrapping_sub(each(than)) & !bytes
    }
    let mut found = less(bytes, b' ') | less(bytes ^ each(b'"'), 1) | less(bytes ^ each(b'\\'), 1);
    if ascii {
        found |= bytes | less(bytes ^ each(0x7f), 1);
    }
    found & each(0x80) == 0
}

/// Whether a byte stands for itself.
const fn is_plain(byte: u8, ascii: bool) -> bool {
    byte >= 0x20 && byte != b'"' && byte != b'\\' && !(ascii && byte >= 0x7f)
}

/// Whether each byte stands for itself. Looks at many at a time, so that the compiler can do so, too.
fn is_all_plain(text: &[u8], ascii: bool) -> bool {
    let (chunks, rest) = text.as_chunks::<16>();
    let plain = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(true, |all, byte| all & is_plain(*byte, ascii))
    };
    chunks.iter().all(|chunk| plain(chunk)) && plain(rest)
}

fn escape(text: &str, out: &mut Vec<u8>, ascii: bool) {
    for character in text.chars() {
        match character {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\u{8}' => out.extend_from_slice(b"\\b"),
            '\u{c}' => out.extend_from_slice(b"\\f"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            _ if character < ' ' || (ascii && character >= '\u{7f}') => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    escape_unit(*unit, out);
                }
            }
            _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

fn escape_unit(unit: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\\u");
    for byte in unit.to_be_bytes() {
        for digit in [byte >> 4, byte & 15] {
            out.push(if digit < 10 {
                b'0' + digit
            } else {
                b'a' + digit - 10
            });
        }
    }
}

/// Appends the characters that `text` stands for; `None` where it is no JSON.
pub(super) fn unescape(text: &str, out: &mut String) -> Option<()> {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(rest.get(..at)?);
        let escape = *rest.as_bytes().get(at + 1)?;
        rest = rest.get(at + 2..)?;
        let character = match escape {
            b'"' | b'\\' | b'/' => char::from(escape),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = take_unit(&mut rest)?;
                if (0xd800..0xdc00).contains(&unit) {
                    rest = rest.strip_prefix("\\u")?;
                    let second = take_unit(&mut rest)?;
                    char::decode_utf16([unit, second]).next()?.ok()?
                } else {
                    char::from_u32(u32::from(unit))?
                }
            }
            _ => return None,
        };
        out.push(character);
    }
    out.push_str(rest);
    Some(())
}

/// Four hexadecimal digits.
fn take_unit(rest: &mut &str) -> Option<u16> {
    let (digits, after) = rest.split_at_checked(4)?;
    *rest = after;
    digits
        .bytes()
        .all(|digit| digit.is_ascii_hexdigit())
        .then(|| u16::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use arrow::array::StringViewArray;

    use super::*;

    /// Each character of one and two bytes, alone and among others, at each place.
    #[test]
    fn short_strings_are_written_as_long_ones() {
        let mut texts = vec![String::new()];
        for character in (0..0x800).filter_map(char::from_u32) {
            for before in 0..12 {
                for after in 0..12 - before {
                    texts.push(format!(
                        "{}{character}{}",
                        "a".repeat(before),
                        "~".repeat(after)
                    ));
                }
            }
        }
        let views = StringViewArray::from_iter_values(&texts);
        for (text, view) in texts.iter().zip(views.views().iter()) {
            for ascii in [false, true] {
                let plain = text.bytes().all(|byte| is_plain(byte, ascii));
                let (mut short, mut long) = (b"x".to_vec(), b"x".to_vec());
                let is_written = write_inline(*view, &mut short, ascii);
                assert_eq!(is_written, plain && text.len() <= 12, "{text:?} {ascii}");
                assert_eq!(
                    is_all_plain(text.as_bytes(), ascii),
                    plain,
                    "{text:?} {ascii}"
                );
                write(text, &mut long, ascii);
                assert_eq!(
                    short,
                    if is_written { &long[..] } else { b"x" },
                    "{text:?} {ascii}"
                );
            }
        }
    }
}
