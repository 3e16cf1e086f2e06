//! Random payloads as JSON producers write them, and as they go wrong.

use std::cell::Cell;

use super::support::Random;

/// How one producer writes JSON.
pub(crate) struct Pen {
    comma: &'static str,
    colon: &'static str,
    ascii: bool,
    keys: Vec<(String, u64)>,
    /// Whether the payload that is being written may have oddities.
    wild: Cell<bool>,
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[usize::try_from(random.below(from.len() as u64)).unwrap()]
}

impl Pen {
    pub(crate) fn new(random: &mut Random) -> Self {
        let names = [
            "id",
            "Id",
            "user",
            "name",
            "a.b",
            "a",
            "",
            "höhe",
            "ts",
            "tags",
            "_offset",
            "\u{1f600}",
        ];
        let count = 1 + random.below(9);
        let repeats = random.one_in(8);
        let mut keys: Vec<(String, u64)> = Vec::new();
        for _ in 0..count {
            let key = pick(random, &names).to_owned();
            if repeats || keys.iter().all(|(other, _)| *other != key) {
                keys.push((key, random.below(9)));
            }
        }
        Self {
            comma: pick(random, &[",", ", ", " ,\n\t"]),
            colon: pick(random, &[":", ": ", " :\r\n"]),
            ascii: random.one_in(3),
            keys,
            wild: Cell::new(false),
        }
    }

    /// A payload: nearly always an object in this hand.
    pub(crate) fn payload(&self, random: &mut Random) -> Vec<u8> {
        let mut out = Vec::new();
        self.wild.set(random.one_in(3));
        if !self.wild.get() {
            self.object(random, 3, &mut out);
            return out;
        }
        match random.below(40) {
            0 => self.value(random, 8, 3, &mut out),
            1 => {}
            _ => self.object(random, 3, &mut out),
        }
        if random.one_in(60) {
            out.insert(0, b' ');
            out.push(b'\n');
        }
        if random.one_in(40) && !out.is_empty() {
            let at = usize::try_from(random.below(out.len() as u64)).unwrap();
            match random.below(4) {
                0 => out.truncate(at),
                1 => out[at] = random.next().to_be_bytes()[0],
                2 => out.insert(at, pick(random, b"\"\\{}[],: 0\xff\xc3-")),
                _ => drop(out.remove(at)),
            }
        }
        out
    }

    fn odd(&self, random: &mut Random, chances: u64) -> bool {
        self.wild.get() && random.one_in(chances)
    }

    fn object(&self, random: &mut Random, depth: u64, out: &mut Vec<u8>) {
        out.push(b'{');
        let mut first = true;
        let from = if self.odd(random, 10) {
            random.below(3)
        } else {
            0
        };
        let keys = self
            .keys
            .iter()
            .cycle()
            .skip(usize::try_from(from).unwrap());
        for (key, kind) in keys.take(self.keys.len()) {
            let times = pick(random, &[1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 2]);
            for _ in 0..if self.odd(random, 3) { times } else { 1 } {
                if !first {
                    out.extend_from_slice(self.comma.as_bytes());
                }
                first = false;
                self.string(key, out);
                out.extend_from_slice(self.colon.as_bytes());
                let kind = if self.odd(random, 30) {
                    random.below(9)
                } else {
                    *kind
                };
                self.value(random, kind, depth - 1, out);
            }
        }
        out.push(b'}');
    }

    fn value(&self, random: &mut Random, kind: u64, depth: u64, out: &mut Vec<u8>) {
        if random.one_in(12) {
            out.extend_from_slice(pick(random, &["null", "{}", "[]", "\"\"", "0"]).as_bytes());
            return;
        }
        let odd = self.odd(random, 20);
        match kind {
            0 | 1 if odd => {
                let odd_numbers = [
                    "-0",
                    "1.0",
                    "1e5",
                    "1E5",
                    "-0.0",
                    "01",
                    "18446744073709551615",
                    "1e400",
                    "0.10",
                    "-9223372036854775808",
                    "9223372036854775808",
                    "123456789012345678901234567890",
                    "NaN",
                    "1.",
                    "+1",
                    "5e-324",
                    "2.2250738585072014e-308",
                    "1e-7",
                    "1e+16",
                    "1e16",
                ];
                out.extend_from_slice(pick(random, &odd_numbers).as_bytes());
            }
            0 => out.extend_from_slice(random.below(1 << 20).to_string().as_bytes()),
            1 => {
                let whole = i32::try_from(random.below(20_000)).unwrap() - 10_000;
                let number = f64::from(whole) / pick(random, &[1.0, 4.0, 10.0, 3.0]);
                out.extend_from_slice(format!("{number:?}").as_bytes());
            }
            2 if depth.is_multiple_of(2) => {
                let cents = random.below(5000).cast_signed() - 1000;
                let sign = if cents < 0 { "-" } else { "" };
                let (whole, rest) = (cents.abs() / 100, cents.abs() % 100);
                out.extend_from_slice(format!("{sign}{whole}.{rest:02}").as_bytes());
            }
            2 => out.extend_from_slice(pick(random, &["true", "false"]).as_bytes()),
            3 | 4 => {
                let texts = [
                    "",
                    "abc",
                    "a\"b",
                    "back\\slash",
                    "tab\t",
                    "é",
                    "\u{1f600}",
                    "\u{1}",
                    "null",
                    "\u{7f}",
                    "/",
                ];
                if odd {
                    let raw = [
                        "\"\\/\"",
                        "\"\\u00e9\"",
                        "\"\\u00E9\"",
                        "\"\\ud83d\"",
                        "\"\\ud83d\\ude00\"",
                        "\"\\x\"",
                        "\"\n\"",
                        "\"\\u12\"",
                        "\"\\\"",
                        "\"\\ude00\"",
                        "\"\\u0000\"",
                    ];
                    out.extend_from_slice(pick(random, &raw).as_bytes());
                } else {
                    self.string(pick(random, &texts), out);
                }
            }
            5 if depth > 0 => {
                out.push(b'[');
                for item in 0..random.below(4) {
                    if item > 0 {
                        out.extend_from_slice(self.comma.as_bytes());
                    }
                    let kind = random.below(9);
                    self.value(random, kind, depth - 1, out);
                }
                out.push(b']');
            }
            6 | 7 if depth > 0 => self.object(random, depth, out),
            _ => out.extend_from_slice(random.next().to_string().as_bytes()),
        }
    }

    fn string(&self, text: &str, out: &mut Vec<u8>) {
        let quoted = serde_json::to_string(text).unwrap();
        for character in quoted.chars() {
            if self.ascii && !character.is_ascii() {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
                }
            } else {
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
}
