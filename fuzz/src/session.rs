//! What peers send on a session, and how connections open: a value that decodes encodes to the bytes it came from.

use basalt_proto::session::{
    CommittedResponse, CoolTopicResponse, EmptyResponse, ErrorResponse, FetchResponseHeader,
    GroupsResponse, ListOffsetsResponse, MetadataResponse, ProduceResponse, REQUEST_HEADER_BYTES,
    RESPONSE_HEADER_BYTES, Request, RequestHeader, ResponseBody, ResponseHeader, encode_response,
};
use basalt_proto::{ACK_BYTES, Ack, Opening};

const MAX_BYTES: u32 = 1 << 20;

pub fn run(data: &[u8]) {
    opening(data);
    request(data);
    response(data);
    if let Some(ack) = data.first_chunk::<ACK_BYTES>()
        && let Ok(decoded) = Ack::decode(*ack)
    {
        let encoded = decoded.encode();
        assert_eq!(Ack::decode(encoded), Ok(decoded));
    }
}

fn opening(data: &[u8]) {
    let Ok(Some((opening, bytes))) = Opening::parse(data) else {
        return;
    };
    let mut encoded = Vec::new();
    opening.encode_into(&mut encoded);
    assert_eq!(Opening::parse(&encoded), Ok(Some((opening, encoded.len()))));
    assert!(bytes <= data.len());
}

fn request(data: &[u8]) {
    let Some((head, body)) = data.split_first_chunk::<REQUEST_HEADER_BYTES>() else {
        return;
    };
    let Ok(header) = RequestHeader::decode(head, MAX_BYTES) else {
        return;
    };
    let body = &body[..body.len().min(header.body_bytes as usize)];
    let Ok(request) = Request::decode(header.kind, body) else {
        return;
    };
    assert_eq!(request.kind(), header.kind);
    let mut encoded = Vec::new();
    request.encode_into(header.correlation_id, &mut encoded);
    let (head, body) = encoded
        .split_first_chunk::<REQUEST_HEADER_BYTES>()
        .expect("a header");
    let again = RequestHeader::decode(head, MAX_BYTES).expect("its header");
    assert_eq!(again.body_bytes as usize, body.len());
    assert_eq!(Request::decode(again.kind, body), Ok(request));
}

fn response(data: &[u8]) {
    let Some((head, body)) = data.split_first_chunk::<RESPONSE_HEADER_BYTES>() else {
        return;
    };
    let Ok(header) = ResponseHeader::decode(head, MAX_BYTES) else {
        return;
    };
    let body = &body[..body.len().min(header.body_bytes as usize)];
    round_trip::<CommittedResponse>(body);
    round_trip::<CoolTopicResponse>(body);
    round_trip::<EmptyResponse>(body);
    round_trip::<GroupsResponse>(body);
    round_trip::<ListOffsetsResponse>(body);
    round_trip::<MetadataResponse>(body);
    round_trip::<ProduceResponse>(body);
    let _ = ErrorResponse::decode(header.status, body);
    if let Ok((header, frames)) = FetchResponseHeader::decode_prefix(body) {
        assert_eq!(
            FetchResponseHeader::decode_prefix(&header.encode()).map(|(again, _)| again),
            Ok(header)
        );
        assert!(body.ends_with(frames));
    }
}

fn round_trip<B: ResponseBody + PartialEq + std::fmt::Debug>(body: &[u8]) {
    let Ok(decoded) = B::decode(body) else {
        return;
    };
    let mut encoded = Vec::new();
    encode_response(1, &decoded, &mut encoded);
    assert_eq!(B::decode(&encoded[RESPONSE_HEADER_BYTES..]), Ok(decoded));
}
