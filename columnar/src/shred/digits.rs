//! Whole numbers as text. Most are small, and there are many of them: their digits are looked up, and moved without a call.

/// Numbers below this have at most four digits.
const SMALL: usize = 10_000;

/// The digits of each small number, from the left.
static DIGITS: [[u8; 4]; SMALL] = digits();

const fn digits() -> [[u8; 4]; SMALL] {
    let mut all = [[0; 4]; SMALL];
    let mut number = 0;
    while number < SMALL {
        let mut rest = number;
        let mut at = digit_count(number);
        while at > 0 {
            at -= 1;
            all[number][at] = b"0123456789"[rest % 10];
            rest /= 10;
        }
        number += 1;
    }
    all
}

/// Digits of a small number.
const fn digit_count(number: usize) -> usize {
    1 + (number > 9) as usize + (number > 99) as usize + (number > 999) as usize
}

/// Appends a number in decimal.
#[inline]
pub(super) fn write_uint(number: u64, out: &mut Vec<u8>) {
    match usize::try_from(number) {
        Ok(small) if small < SMALL => {
            let start = out.len();
            out.extend_from_slice(&DIGITS[small]);
            out.truncate(start + digit_count(small));
        }
        _ => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

/// Appends a number in decimal, with its sign if it is negative.
#[inline]
pub(super) fn write_int(number: i64, out: &mut Vec<u8>) {
    if number < 0 {
        out.push(b'-');
    }
    write_uint(number.unsigned_abs(), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_others_write_them() {
        let around = |number: i64| (-3..=3).map(move |step| number.saturating_add(step));
        let powers = (0..19).flat_map(|power| around(10_i64.pow(power)));
        let all = (-20_000..20_000)
            .chain(powers)
            .chain(around(i64::MAX))
            .chain(around(i64::MIN));
        for number in all {
            let (mut int, mut uint) = (Vec::new(), b"x".to_vec());
            write_int(number, &mut int);
            assert_eq!(int, number.to_string().as_bytes());
            write_uint(number.cast_unsigned(), &mut uint);
            assert_eq!(uint, format!("x{}", number.cast_unsigned()).as_bytes());
        }
    }
}
