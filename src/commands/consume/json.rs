//! A record as a JSON object. Bytes that are UTF-8 are a string; others are base64 under a name that says so.

use std::io::{self, Write};

use basalt_proto::ExpandedRecord;
use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the object and a line feed.
pub(super) fn record(record: &ExpandedRecord<'_>, out: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Object(record))?;
    out.write_all(b"\n")
}

struct Object<'a>(&'a ExpandedRecord<'a>);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let record = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("offset", &record.offset.0)?;
        map.serialize_entry("timestamp", &record.timestamp_ns)?;
        if record.timestamp_ns.is_none() {
            // A batch's milliseconds that no nanosecond can hold.
            map.serialize_entry("timestamp_ms", &record.timestamp_ms)?;
        }
        if record.record_count > 1 {
            map.serialize_entry("record_count", &record.record_count)?;
        }
        bytes_entry(&mut map, "key", "key_base64", record.key)?;
        map.serialize_entry("headers", &Headers(record))?;
        bytes_entry(&mut map, "payload", "payload_base64", record.payload)?;
        map.end()
    }
}

struct Headers<'a>(&'a ExpandedRecord<'a>);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.headers.len()))?;
        for header in self.0.headers {
            list.serialize_element(&Header {
                key: header.key,
                value: header.value,
            })?;
        }
        list.end()
    }
}

struct Header<'a> {
    key: &'a [u8],
    value: Option<&'a [u8]>,
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        bytes_entry(&mut map, "key", "key_base64", Some(self.key))?;
        bytes_entry(&mut map, "value", "value_base64", self.value)?;
        map.end()
    }
}

fn bytes_entry<M: serde::ser::SerializeMap>(
    map: &mut M,
    name: &'static str,
    name_base64: &'static str,
    bytes: Option<&[u8]>,
) -> Result<(), M::Error> {
    match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
        None => map.serialize_entry(name, &None::<&str>),
        Some(Ok(text)) => map.serialize_entry(name, text),
        Some(Err(bytes)) => map.serialize_entry(name_base64, &base64(bytes)),
    }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0_usize, |group, at| {
            group << 8 | usize::from(chunk.get(at).copied().unwrap_or(0))
        });
        for at in 0..4 {
            let character = if at <= chunk.len() {
                ALPHABET[group >> (18 - 6 * at) & 63]
            } else {
                b'='
            };
            text.push(char::from(character));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use basalt_proto::{Offset, RecordHeader};

    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let vectors = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (length, expected) in vectors.iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), *expected);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0x00, 0xfb]), "//4A+w==");
    }

    #[test]
    fn null_empty_text_and_bytes_are_four_things() {
        let headers = [
            RecordHeader {
                key: b"h",
                value: None,
            },
            RecordHeader {
                key: b"h",
                value: Some(b""),
            },
            RecordHeader {
                key: b"\xff",
                value: Some(b"\xff"),
            },
        ];
        let mut out = Vec::new();
        let expanded = ExpandedRecord {
            offset: Offset(3),
            timestamp_ns: None,
            timestamp_ms: Some(-5),
            key: None,
            payload: Some(b"a\"b"),
            headers: &headers,
            record_count: 1,
        };
        record(&expanded, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"offset\":3,\"timestamp\":null,\"timestamp_ms\":-5,\"key\":null,\"headers\":[{\"key\":\"h\",\"value\":null},\
             {\"key\":\"h\",\"value\":\"\"},{\"key_base64\":\"/w==\",\"value_base64\":\"/w==\"}],\"payload\":\"a\\\"b\"}\n"
        );
    }
}
