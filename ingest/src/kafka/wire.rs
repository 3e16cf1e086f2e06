//! Kafka's primitive types as they come from a peer, read without believing a length or a count.
//!
//! - **KAF-2**: a count is believed only as far as the bytes behind it could hold so many, and all counts of one request
//!   together only up to [`MAX_ELEMENTS`]. So what is decoded is bounded by what arrived, whatever was claimed.

use super::api::Field;

/// What one request may list, tagged fields included. A decoded element takes some 200 bytes at most.
pub(super) const MAX_ELEMENTS: usize = 1 << 16;
/// As Kafka does, in both encodings.
const MAX_TEXT_BYTES: usize = i16::MAX as usize;
/// A tagged field is a tag and a length at least.
const MIN_TAGGED_BYTES: usize = 2;

/// Why bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("{needed} bytes are needed at byte {position}, {available} are there")]
    Short {
        position: usize,
        needed: usize,
        available: usize,
    },
    #[error("the length {found} at byte {position} is none")]
    Length { position: usize, found: i64 },
    #[error("{found} elements are announced at byte {position}, {available} bytes are behind it")]
    Count {
        position: usize,
        found: usize,
        available: usize,
    },
    #[error("more than {MAX_ELEMENTS} elements are announced up to byte {position}")]
    TooMany { position: usize },
    #[error("the number at byte {position} takes more than five bytes")]
    Number { position: usize },
    #[error(
        "the tagged field {tag} at byte {position} is one of followers, of which there are none"
    )]
    Tag { position: usize, tag: u32 },
}

/// Reads a request from its beginning on.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    flexible: bool,
    elements: usize,
}

impl<'a> Reader<'a> {
    /// A flexible version has compact lengths, and tagged fields behind every struct.
    pub(super) const fn new(bytes: &'a [u8], flexible: bool) -> Self {
        Self {
            bytes,
            position: 0,
            flexible,
            elements: 0,
        }
    }

    /// From here on in the other encoding: a header's strings are never compact.
    pub(super) const fn set_flexible(&mut self, flexible: bool) {
        self.flexible = flexible;
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.rest();
        let taken = rest.get(..count).ok_or(Malformed::Short {
            position: self.position,
            needed: count,
            available: rest.len(),
        })?;
        self.position += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(super) fn i16(&mut self) -> Result<i16, Malformed> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    fn varint(&mut self) -> Result<u32, Malformed> {
        let position = self.position;
        let mut value = 0_u64;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return u32::try_from(value).map_err(|_| Malformed::Number { position });
            }
        }
        Err(Malformed::Number { position })
    }

    /// A length that may be null, in the encoding of the version; `wide` where it is not compact and has four bytes.
    fn length(&mut self, wide: bool) -> Result<Option<usize>, Malformed> {
        let position = self.position;
        let found = match (self.flexible, wide) {
            (true, _) => i64::from(self.varint()?) - 1,
            (false, true) => i64::from(self.i32()?),
            (false, false) => i64::from(self.i16()?),
        };
        match found {
            -1 => Ok(None),
            _ => usize::try_from(found)
                .map(Some)
                .map_err(|_| Malformed::Length { position, found }),
        }
    }

    /// A string or null.
    pub(super) fn text(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let position = self.position;
        let Some(length) = self.length(false)? else {
            return Ok(None);
        };
        if length > MAX_TEXT_BYTES {
            let found = i64::try_from(length).unwrap_or(i64::MAX);
            return Err(Malformed::Length { position, found });
        }
        self.take(length).map(Some)
    }

    /// Bytes or null.
    pub(super) fn blob(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        self.length(true)?
            .map(|length| self.take(length))
            .transpose()
    }

    /// How many elements of at least `min_bytes` follow; 0 for null.
    pub(super) fn count(&mut self, min_bytes: usize) -> Result<usize, Malformed> {
        let position = self.position;
        let count = self.length(true)?.unwrap_or(0);
        self.claim(position, count, min_bytes)?;
        Ok(count)
    }

    fn claim(&mut self, position: usize, count: usize, min_bytes: usize) -> Result<(), Malformed> {
        let available = self.rest().len();
        if count > available / min_bytes.max(1) {
            return Err(Malformed::Count {
                position,
                found: count,
                available,
            });
        }
        self.elements += count;
        if self.elements > MAX_ELEMENTS {
            return Err(Malformed::TooMany { position });
        }
        Ok(())
    }

    /// The tagged fields behind a struct, whatever they are; there are none unless the version is flexible.
    pub(super) fn tags(&mut self) -> Result<(), Malformed> {
        self.tags_from(0)
    }

    /// The same, but none below `first`.
    fn tags_from(&mut self, first: u32) -> Result<(), Malformed> {
        if !self.flexible {
            return Ok(());
        }
        let position = self.position;
        let count = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        self.claim(position, count, MIN_TAGGED_BYTES)?;
        for _ in 0..count {
            let position = self.position;
            let tag = self.varint()?;
            if tag < first {
                return Err(Malformed::Tag { position, tag });
            }
            let length = self.varint()?;
            self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        }
        Ok(())
    }

    /// Walks over a request's body of these fields and the tagged ones behind them, of which none may be below `own_tags`.
    pub(super) fn walk_body(
        &mut self,
        fields: &[Field],
        version: i16,
        own_tags: u32,
    ) -> Result<(), Malformed> {
        for field in fields {
            self.walk_field(field, version)?;
        }
        self.tags_from(own_tags)
    }

    /// Walks over a struct of these fields and the tagged ones behind them.
    fn walk(&mut self, fields: &[Field], version: i16) -> Result<(), Malformed> {
        self.walk_body(fields, version, 0)
    }

    fn walk_field(&mut self, field: &Field, version: i16) -> Result<(), Malformed> {
        match field {
            Field::In(first, last, field) if (*first..=*last).contains(&version) => {
                self.walk_field(field, version)
            }
            Field::In(..) => Ok(()),
            Field::Fixed(bytes) => self.take(*bytes).map(drop),
            Field::Text => self.text().map(drop),
            Field::Blob => self.blob().map(drop),
            Field::Each(bytes) => {
                let count = self.count(*bytes)?;
                self.take(count.saturating_mul(*bytes)).map(drop)
            }
            Field::Texts => {
                for _ in 0..self.count(1)? {
                    self.text()?;
                }
                Ok(())
            }
            Field::List(fields) => {
                for _ in 0..self.count(1)? {
                    self.walk(fields, version)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_in_both_encodings() {
        let mut plain = Reader::new(b"\0\x02ab\xff\xff\0\0\0\x01x\xff\xff\xff\xff", false);
        assert_eq!(plain.text(), Ok(Some(&b"ab"[..])));
        assert_eq!(plain.text(), Ok(None));
        assert_eq!(plain.blob(), Ok(Some(&b"x"[..])));
        assert_eq!((plain.blob(), plain.tags()), (Ok(None), Ok(())));
        let mut compact = Reader::new(b"\x03ab\0\x02x\x01\x01\x05\x02zz", true);
        assert_eq!(compact.text(), Ok(Some(&b"ab"[..])));
        assert_eq!(compact.text(), Ok(None));
        assert_eq!(compact.blob(), Ok(Some(&b"x"[..])));
        assert_eq!(compact.count(1), Ok(0));
        assert_eq!(compact.tags(), Ok(()));
        assert!(compact.rest().is_empty());
    }

    #[test]
    fn claims_that_the_bytes_cannot_hold_are_refused() {
        let refused = |bytes: &[u8], flexible| {
            Reader::new(bytes, flexible)
                .count(2)
                .expect_err("it is refused")
        };
        assert!(matches!(
            refused(b"\x7f\xff\xff\xff....", false),
            Malformed::Count { found, .. } if found == 0x7FFF_FFFF
        ));
        assert!(matches!(
            refused(b"\0\0\0\x03.....", false),
            Malformed::Count { .. }
        ));
        assert!(matches!(
            refused(b"\xff\xff\xff\xfe", false),
            Malformed::Length { found: -2, .. }
        ));
        assert!(matches!(
            refused(b"\xff\xff\xff\xff\x1f", true),
            Malformed::Number { .. }
        ));
        let mut many = vec![0; 4 * MAX_ELEMENTS];
        many[..4].copy_from_slice(&u32::try_from(MAX_ELEMENTS + 1).unwrap().to_be_bytes());
        assert!(matches!(refused(&many, false), Malformed::TooMany { .. }));
        assert!(
            Reader::new(b"\x01\0\xff\xff\xff\xff\x0f", true)
                .tags()
                .is_err()
        );
    }
}
