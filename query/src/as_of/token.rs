//! Tokens: a cut as text.
//!
//! Base64 (for URLs, without padding) of these bytes; numbers are LEB128 unless a size is given, and big-endian then.
//!
//! | what | |
//! |---|---|
//! | version | 1 byte, `1` |
//! | rows in a batch | |
//! | topics | their number, then for each by name: length of the name, the name, its id (8 bytes), partitions |
//! | partitions | their number, then for each by number: the number, first offset, count of offsets |
//! | CRC-32C | 4 bytes, of all before |

use basalt_log::{TopicId, crc32c};
use basalt_proto::{Offset, PartitionId, TopicName};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::SnapshotError;
use crate::QueryConfig;

const VERSION: u8 = 1;
/// Bytes of a token before they are text: some thousand partitions.
const TOKEN_BYTES: usize = 64 << 10;
const CHECKSUM_BYTES: usize = 4;

/// What a query saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Rows in each batch but the last.
    pub(crate) batch_rows: u32,
    /// By name.
    pub(crate) topics: Vec<TopicCut>,
}

/// What a query saw of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicCut {
    pub(crate) name: TopicName,
    pub(crate) id: TopicId,
    /// By number; those that were never used are left out.
    pub(crate) partitions: Vec<Cut>,
}

/// What a query saw of a partition: offsets from `start` up to, and without, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) partition: PartitionId,
    pub(crate) start: Offset,
    pub(crate) end: Offset,
}

impl Token {
    /// As text; `None` if it would be longer than what is read again.
    pub(crate) fn to_text(&self) -> Option<String> {
        let mut bytes = vec![VERSION];
        put(&mut bytes, u64::from(self.batch_rows));
        put(&mut bytes, self.topics.len() as u64);
        for topic in &self.topics {
            let name = topic.name.as_str().as_bytes();
            put(&mut bytes, name.len() as u64);
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(&topic.id.0.to_be_bytes());
            put(&mut bytes, topic.partitions.len() as u64);
            for cut in &topic.partitions {
                put(&mut bytes, u64::from(cut.partition.0));
                put(&mut bytes, cut.start.0);
                put(&mut bytes, cut.end.0.saturating_sub(cut.start.0));
            }
            if bytes.len() + CHECKSUM_BYTES > TOKEN_BYTES {
                return None;
            }
        }
        bytes.extend_from_slice(&crc32c(&bytes).to_be_bytes());
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// What `text` says, which may come from anyone.
    pub(crate) fn from_text(text: &str) -> Result<Self, SnapshotError> {
        if text.len() > TOKEN_BYTES / 3 * 4 + 4 {
            return Err(refused("it is too long"));
        }
        let bytes = URL_SAFE_NO_PAD
            .decode(text.trim())
            .map_err(|error| refused(&error.to_string()))?;
        let (content, checksum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or_else(|| refused("it ends too soon"))?;
        if crc32c(content) != u32::from_be_bytes(*checksum) {
            return Err(refused(
                "its checksum does not match, a part is missing or altered",
            ));
        }
        match content.split_first() {
            Some((&VERSION, rest)) => {
                read(rest).ok_or_else(|| refused("its content makes no sense"))
            }
            _ => Err(refused("it is of another version")),
        }
    }

    /// The cut of a topic.
    pub(crate) fn topic(&self, name: &TopicName) -> Option<&TopicCut> {
        self.topics.iter().find(|topic| topic.name == *name)
    }
}

fn refused(reason: &str) -> SnapshotError {
    SnapshotError::Token {
        reason: reason.to_owned(),
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

/// A number of at most 64 bits.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn read(mut bytes: &[u8]) -> Option<Token> {
    let bytes = &mut bytes;
    // Whoever made the token may have made it up: room for a batch is taken before there are rows.
    let allowed = 1..=QueryConfig::MAX_BATCH_ROWS as u64;
    let batch_rows = take(bytes)?;
    let batch_rows = allowed
        .contains(&batch_rows)
        .then(|| u32::try_from(batch_rows).ok())??;
    let count = take(bytes)?;
    let mut topics = Vec::new();
    // Nothing is allocated for what a number claims: each topic takes bytes that are there.
    for _ in 0..count {
        topics.push(read_topic(bytes)?);
    }
    bytes.is_empty().then_some(Token { batch_rows, topics })
}

fn read_topic(bytes: &mut &[u8]) -> Option<TopicCut> {
    let length = usize::try_from(take(bytes)?).ok()?;
    let (name, rest) = bytes.split_at_checked(length)?;
    let name = TopicName::new(std::str::from_utf8(name).ok()?).ok()?;
    let (id, rest) = rest.split_first_chunk()?;
    *bytes = rest;
    let count = take(bytes)?;
    let mut partitions = Vec::new();
    for _ in 0..count {
        let partition = PartitionId(u32::try_from(take(bytes)?).ok()?);
        let start = take(bytes)?;
        let end = start.checked_add(take(bytes)?)?;
        partitions.push(Cut {
            partition,
            start: Offset(start),
            end: Offset(end),
        });
    }
    Some(TopicCut {
        name,
        id: TopicId(u64::from_be_bytes(*id)),
        partitions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        let cut = |partition, start, end| Cut {
            partition: PartitionId(partition),
            start: Offset(start),
            end: Offset(end),
        };
        let topic = |name: &str, id, partitions| TopicCut {
            name: TopicName::new(name).unwrap(),
            id: TopicId(id),
            partitions,
        };
        Token {
            batch_rows: 8_192,
            topics: vec![
                topic(
                    "a.b",
                    7,
                    vec![cut(0, 0, 300), cut(5, 127, 128), cut(9, 4, 4)],
                ),
                topic("t", u64::MAX, vec![cut(u32::MAX, 0, u64::MAX)]),
                topic("unused", 0, vec![]),
            ],
        }
    }

    #[test]
    fn a_token_comes_back_from_its_text() {
        let text = token().to_text().unwrap();
        assert_eq!(Token::from_text(&text), Ok(token()));
        assert!(
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        );
        // The text of version 1, to stay.
        let small = Token {
            batch_rows: 1,
            topics: vec![],
        };
        assert_eq!(Token::from_text(&small.to_text().unwrap()), Ok(small));
    }

    #[test]
    fn any_altered_or_shortened_token_is_refused() {
        let text = token().to_text().unwrap();
        for end in 0..text.len() {
            assert!(Token::from_text(&text[..end]).is_err(), "{end}");
        }
        for (index, _) in text.char_indices() {
            for replacement in ["A", "B", "_", " "] {
                let mut altered = text.clone();
                altered.replace_range(index..=index, replacement);
                if altered != text {
                    // The last character may have bits that mean nothing; those are refused too.
                    assert!(Token::from_text(&altered).is_err(), "{index} {replacement}");
                }
            }
        }
        for strange in ["", "x", "SELECT 1", "é", &"A".repeat(1 << 20)] {
            assert!(Token::from_text(strange).is_err());
        }
    }

    #[test]
    fn a_token_whose_checksum_is_right_may_still_make_no_sense() {
        let sealed = |content: &[u8]| {
            let mut bytes = content.to_vec();
            bytes.extend_from_slice(&crc32c(content).to_be_bytes());
            Token::from_text(&URL_SAFE_NO_PAD.encode(bytes))
        };
        assert!(sealed(&[1, 1, 0]).is_ok());
        assert!(sealed(&[1, 0x80, 0x80, 0x40, 0]).is_ok());
        for content in [
            &[][..],
            &[2, 1, 0],
            &[1],
            &[1, 0, 0],
            // 4,294,967,295 and 1,048,577 rows in a batch.
            &[1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0],
            &[1, 0x81, 0x80, 0x40, 0],
            &[1, 1, 0, 0],
            &[1, 1, 1],
            &[
                1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
            ],
            &[
                1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0,
            ],
            &[1, 1, 1, 1, b'/', 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(sealed(content).is_err(), "{content:?}");
        }
    }

    #[test]
    fn a_token_of_too_many_partitions_is_none() {
        let mut token = token();
        token.topics[0].partitions = vec![token.topics[1].partitions[0]; 10_000];
        assert_eq!(token.to_text(), None);
    }
}
