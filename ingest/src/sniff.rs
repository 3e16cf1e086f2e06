//! Who calls, told from the first byte of a connection, which is peeked at and stays in the socket.
//!
//! | first byte | caller |
//! |---|---|
//! | `01` to `04` | native (see [`basalt_proto::Opening`]) |
//! | a letter | HTTP/1 or HTTP/2 |
//! | `00` | Kafka: the length of its first request |
//! | `16` | TLS |
//! | anything else | nobody known |

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Native,
    Http,
    Kafka,
    Unknown { hint: &'static str },
}

pub(crate) const fn caller(first_byte: u8) -> Caller {
    match first_byte {
        0x01..=0x04 => Caller::Native,
        b'A'..=b'Z' | b'a'..=b'z' => Caller::Http,
        0x00 => Caller::Kafka,
        0x16 => Caller::Unknown { hint: " (TLS?)" },
        _ => Caller::Unknown { hint: "" },
    }
}

/// Whether what is no opening yet is a Kafka request of 16 MiB or more, whose length begins like an opening: with that only a client
/// begins that asks for nothing before it produces. An opening with these zeros in it is short, and whole by then.
pub(crate) fn is_large_kafka_request(received: &[u8]) -> bool {
    matches!(received, [1..=3, _, _, _, 0, 0, 0, 3..=11, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_byte_decides() {
        assert_eq!(caller(0x01), Caller::Native);
        assert_eq!(caller(0x04), Caller::Native);
        assert_eq!(caller(b'G'), Caller::Http);
        assert_eq!(caller(b'p'), Caller::Http);
        assert_eq!(caller(0x00), Caller::Kafka);
        for unknown in [0x05, 0x16, b'@', b'[', b'`', b'{', 0x80, 0xff] {
            assert!(
                matches!(caller(unknown), Caller::Unknown { .. }),
                "{unknown:#04x}"
            );
        }
    }
}
