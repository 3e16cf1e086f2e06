//! A payload of many JSON texts, one a line (`ndjson`).
//!
//! A frame of N records whose payload has N lines is N rows, with the offsets that the frame spans. Lines end with `\n` or
//! `\r\n`; behind the last one that may be missing. An empty line between others is a line. The payload of one record is one
//! row as it stands.

/// How many lines `payload` has. The empty one has one, which is empty.
#[must_use]
pub fn line_count(payload: &[u8]) -> u64 {
    let body = payload.strip_suffix(b"\n").unwrap_or(payload);
    let ends = body.iter().filter(|byte| **byte == b'\n').count();
    u64::try_from(ends).unwrap_or(u64::MAX).saturating_add(1)
}

/// The line of `payload` that begins at `position`, without its end, and where the next one begins.
#[must_use]
pub fn line_at(payload: &[u8], position: usize) -> (&[u8], usize) {
    let rest = payload.get(position..).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == b'\n');
    let line = &rest[..end.unwrap_or(rest.len())];
    let next = position.saturating_add(end.map_or(rest.len(), |end| end + 1));
    (line.strip_suffix(b"\r").unwrap_or(line), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_as_they_are_read() {
        for (payload, lines) in [
            (&b"{}\n[]\r\n1"[..], &[&b"{}"[..], b"[]", b"1"][..]),
            (b"{}\n\n", &[b"{}", b""]),
            (b"{}\n", &[b"{}"]),
            (b"", &[b""]),
            (b"\n\n\n", &[b"", b"", b""]),
        ] {
            assert_eq!(line_count(payload), lines.len() as u64, "{payload:?}");
            let mut position = 0;
            for line in lines {
                let (found, next) = line_at(payload, position);
                assert_eq!(found, *line);
                position = next;
            }
            assert_eq!(position, payload.len());
        }
        assert_eq!(line_at(b"x", 5), (&b""[..], 5));
    }
}
