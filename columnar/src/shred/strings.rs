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
    escape(text, out, ascii);
    out.push(b'"');
}

/// Whether a byte stands for itself.
const fn is_plain(byte: u8, ascii: bool) -> bool {
    byte >= 0x20 && byte != b'"' && byte != b'\\' && !(ascii && byte >= 0x7f)
}

fn escape(text: &str, out: &mut Vec<u8>, ascii: bool) {
    if text.bytes().all(|byte| is_plain(byte, ascii)) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
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
