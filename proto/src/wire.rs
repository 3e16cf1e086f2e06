//! A checked big-endian reader over a byte slice, and the writers that mirror it.
//!
//! Every read either lies wholly inside the slice or says how many bytes were missing; a length read from the slice is
//! never trusted further than the slice reaches (PROTO-1).

/// A read went past the end: `needed` bytes at `position`, of which `available` were there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) position: usize,
    pub(crate) needed: usize,
    pub(crate) available: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub(crate) const fn position(&self) -> usize {
        self.position
    }

    pub(crate) const fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.position..];
        self.position = self.bytes.len();
        rest
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Short> {
        let available = self.remaining();
        if count > available {
            return Err(Short {
                position: self.position,
                needed: count,
                available,
            });
        }
        let taken = &self.bytes[self.position..self.position + count];
        self.position += count;
        Ok(taken)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        match self.bytes[self.position..].first_chunk::<N>() {
            Some(chunk) => {
                self.position += N;
                Ok(*chunk)
            }
            None => Err(Short {
                position: self.position,
                needed: N,
                available: self.remaining(),
            }),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_be_bytes)
    }

    /// A length byte and that many bytes.
    pub(crate) fn short_bytes(&mut self) -> Result<&'a [u8], Short> {
        let length = self.u8()?;
        self.take(usize::from(length))
    }

    /// A 2-byte length and that many bytes.
    pub(crate) fn long_bytes(&mut self) -> Result<&'a [u8], Short> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }
}

/// Writes a length byte and a name. Names are at most [`crate::MAX_NAME_BYTES`] long, so the length always fits.
pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    debug_assert!(name.len() <= crate::MAX_NAME_BYTES);
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name.as_bytes());
}

/// The longest head of `text` that is at most `max_bytes` long and ends at a character.
pub(crate) fn head(text: &str, max_bytes: usize) -> &str {
    if text.len() <= max_bytes {
        return text;
    }
    let end = (0..=max_bytes)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    &text[..end]
}
