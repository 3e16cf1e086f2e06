//! Zig-zag variable-length integers, as Protocol Buffers' sint32 and sint64.

/// The number at the start of `bytes` at `*position`, which moves behind it. `None` when it is cut off, takes more than
/// five bytes, or does not fit 32 bits.
#[inline]
pub(super) fn read_i32(bytes: &[u8], position: &mut usize) -> Option<i32> {
    // One byte holds nearly every delta and length of a small record.
    let first = *bytes.get(*position)?;
    if first < 0x80 {
        *position += 1;
        return Some(i32::from(first >> 1) ^ -i32::from(first & 1));
    }
    let raw = read_raw(bytes, position, 5)?;
    let raw = u32::try_from(raw).ok()?;
    Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
}

/// The number at the start of `bytes` at `*position`, which moves behind it. `None` when it is cut off, takes more than
/// ten bytes, or does not fit 64 bits.
#[inline]
pub(super) fn read_i64(bytes: &[u8], position: &mut usize) -> Option<i64> {
    let raw = read_raw(bytes, position, 10)?;
    Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
}

#[inline]
fn read_raw(bytes: &[u8], position: &mut usize, max_bytes: usize) -> Option<u64> {
    let mut value = 0_u64;
    let tail = bytes.get(*position..)?;
    for (index, byte) in tail.iter().take(max_bytes).enumerate() {
        let bits = u64::from(byte & 0x7F);
        let shift = 7 * u32::try_from(index).ok()?;
        // The tenth byte has room for one bit.
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            *position += index + 1;
            return Some(value);
        }
    }
    None
}

pub(super) fn put_i32(out: &mut Vec<u8>, value: i32) {
    put_raw(
        out,
        u64::from(((value << 1) ^ (value >> 31)).cast_unsigned()),
    );
}

pub(super) fn put_i64(out: &mut Vec<u8>, value: i64) {
    put_raw(out, zigzag(value));
}

/// Small numbers of either sign as small ones of none.
#[inline]
pub(super) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

#[inline]
fn put_raw(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7F) as u8);
}

/// How many bytes [`put_i32`] writes.
pub(super) const fn len_i32(value: i32) -> usize {
    len_raw(((value << 1) ^ (value >> 31)).cast_unsigned() as u64)
}

/// How many bytes [`put_i64`] writes.
pub(super) const fn len_i64(value: i64) -> usize {
    len_raw(zigzag(value))
}

/// How many bytes a length takes, which is not negative.
pub(super) const fn len_count(value: usize) -> usize {
    len_raw((value as u64) << 1)
}

const fn len_raw(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edges_of_each_length_come_back() {
        let mut values = vec![0, 1, -1, i64::MAX, i64::MIN];
        for bits in 0..63 {
            values.extend([
                (1_i64 << bits) - 1,
                1 << bits,
                -(1_i64 << bits),
                -(1_i64 << bits) - 1,
            ]);
        }
        for value in values {
            let mut out = Vec::new();
            put_i64(&mut out, value);
            assert_eq!(out.len(), len_i64(value), "{value}");
            let mut position = 0;
            assert_eq!(read_i64(&out, &mut position), Some(value));
            assert_eq!(position, out.len());
            assert_eq!(read_i64(&out[..out.len() - 1], &mut 0), None, "cut {value}");

            let narrow = i32::try_from(value);
            assert_eq!(read_i32(&out, &mut 0), narrow.ok(), "{value}");
            if let Ok(narrow) = narrow {
                assert_eq!(out.len(), len_i32(narrow));
                let mut again = Vec::new();
                put_i32(&mut again, narrow);
                assert_eq!(again, out);
            }
        }
    }

    #[test]
    fn numbers_that_do_not_end_or_do_not_fit_are_refused() {
        assert_eq!(read_i32(&[0xFF; 5], &mut 0), None);
        assert_eq!(read_i32(&[0xFF, 0xFF, 0xFF, 0xFF, 0x1F], &mut 0), None);
        assert_eq!(
            read_i32(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F], &mut 0),
            Some(i32::MIN)
        );
        assert_eq!(read_i64(&[0xFF; 10], &mut 0), None);
        assert_eq!(
            read_i64(
                &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02],
                &mut 0
            ),
            None
        );
        assert_eq!(read_i64(&[], &mut 0), None);
        assert_eq!(read_i64(&[0], &mut 7), None);
    }
}
