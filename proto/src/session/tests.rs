#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn message_lengths_are_checked_before_anything_is_read() {
    let request = |length: u32| {
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        RequestHeader::decode(&bytes, 100)
    };
    assert_eq!(request(4), Err(SessionError::TooShort { found_bytes: 4 }));
    assert_eq!(request(5).unwrap().body_bytes, 0);
    assert_eq!(request(100).unwrap().body_bytes, 95);
    let too_large = SessionError::TooLarge {
        found_bytes: 101,
        limit_bytes: 100,
    };
    assert_eq!(too_large.kind(), ErrorKind::TooLarge);
    assert_eq!(request(101), Err(too_large));
    assert!(ResponseHeader::decode(&[0xFF; RESPONSE_HEADER_BYTES], 100).is_err());
    assert!(ResponseHeader::decode(&[0; RESPONSE_HEADER_BYTES], 100).is_err());
}

#[test]
fn a_refused_request_says_which_field_was_wrong() {
    let name = Request::decode(8, b"\x02..").unwrap_err();
    assert_eq!(
        name,
        SessionError::Name {
            field: "topic",
            source: NameError::Dots
        }
    );
    assert_eq!(name.kind(), ErrorKind::InvalidName);
    assert_eq!(
        Request::decode(99, &[]),
        Err(SessionError::UnknownRequest { found: 99 })
    );
    assert_eq!(
        Request::decode(10, b"\x01t\x02"),
        Err(SessionError::Value {
            field: "wait",
            found: 2
        })
    );
    let ack = Request::decode(1, b"\x01t\0\0\0\0\x03");
    assert_eq!(
        ack,
        Err(SessionError::Value {
            field: "ack level",
            found: 3
        })
    );
    let start = Request::decode(3, b"\x01t\0\0\0\0\x04\0\0\0\0\0\0\0\0");
    assert_eq!(
        start,
        Err(SessionError::Value {
            field: "start",
            found: 4
        })
    );
    let config = Request::decode(9, b"\x01t\0\x01\x01\xff\0\0");
    assert_eq!(
        config,
        Err(SessionError::NotUtf8 {
            field: "configuration key"
        })
    );
    let cut = SessionError::Truncated {
        field: "partition",
        position: 2,
        needed_bytes: 4,
        available_bytes: 1,
    };
    assert_eq!(Request::decode(1, b"\x01t\0"), Err(cut));
}

#[test]
fn a_status_of_a_later_version_reads_as_an_internal_error_with_its_message() {
    let mut out = Vec::new();
    encode_error(1, &ErrorResponse::new(ErrorKind::Busy, "later"), &mut out);
    let error = ErrorResponse::decode(200, &out[RESPONSE_HEADER_BYTES..]).unwrap();
    assert_eq!(error, ErrorResponse::new(ErrorKind::Internal, "later"));
}

#[test]
fn text_too_long_for_its_length_is_cut_at_a_character() {
    let message = "ä".repeat(40_000);
    let mut out = Vec::new();
    encode_error(
        1,
        &ErrorResponse::new(ErrorKind::Internal, message),
        &mut out,
    );
    let error = ErrorResponse::decode(14, &out[RESPONSE_HEADER_BYTES..]).unwrap();
    assert_eq!(error.message, "ä".repeat(32_767));
}
