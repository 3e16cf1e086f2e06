//! Frames of a producer, and stored ones: whatever the bytes, the answer is one of the typed ones, and the parts agree.

use std::ops::ControlFlow;

use basalt_proto::{
    FrameBatch, FrameCheck, FrameLimits, FrameStop, FrameWalk, Offset, copy_frames, expand,
};

pub fn run(data: &[u8]) {
    walk(data);
    for limits in [FrameLimits::default(), SMALL] {
        parse(data, limits);
    }
}

const SMALL: FrameLimits = FrameLimits {
    max_key_bytes: 8,
    max_payload_bytes: 200,
    max_records_bytes: 200,
};

fn walk(data: &[u8]) {
    let mut walk = FrameWalk::new(data, FrameLimits::UNLIMITED);
    let mut bytes = 0;
    while let Some(frame) = walk.next() {
        let Ok(frame) = frame else { break };
        bytes += frame.header.frame_bytes();
        assert_eq!(walk.position() as u64, bytes);
        let mut encoded = Vec::new();
        frame.encode_into(&mut encoded);
        assert!(data[..walk.position()].ends_with(&encoded));
        let _ = expand(&frame, |record| {
            assert!(record.offset >= frame.header.offset);
            ControlFlow::<()>::Continue(())
        });
    }
    assert!(walk.position() + walk.rest().len() == data.len());
}

fn parse(data: &[u8], limits: FrameLimits) {
    let prefix = FrameBatch::parse_prefix(data, &limits);
    let mut taken = 0;
    if let Some(batch) = prefix.batch {
        taken = batch.bytes().len();
        assert_eq!(batch.bytes(), &data[..taken]);
        let mut records = 0;
        let mut frames = 0;
        for frame in batch.frames() {
            let frame = frame.expect("a checked frame");
            frames += 1;
            records += u64::from(frame.header.logical_count());
            let mut expanded = 0;
            let flow = expand(&frame, |record| {
                expanded += u64::from(record.record_count);
                ControlFlow::<()>::Continue(())
            });
            assert_eq!(flow, Ok(ControlFlow::Continue(())), "a checked batch");
            assert_eq!(expanded, u64::from(frame.header.logical_count()));
        }
        assert_eq!(
            (frames, records),
            (batch.frame_count(), batch.record_count())
        );
        copy(&batch, limits);
    }
    if let FrameStop::Incomplete {
        needed_bytes,
        available_bytes,
    } = prefix.stop
    {
        assert_eq!(available_bytes, data.len() - taken);
        assert!(needed_bytes > available_bytes as u64 && needed_bytes <= limits.max_frame_bytes());
    }
    let whole = FrameBatch::parse(data, &limits);
    assert_eq!(whole.is_ok(), prefix.stop == FrameStop::End && taken > 0);
    // In two steps it comes to the same.
    let mut check = FrameCheck::new(data, limits);
    let end = check.records().unwrap_or(data.len());
    let steps = check
        .finish(end)
        .batch
        .map_or(0, |batch| batch.bytes().len());
    assert!(steps <= taken && (steps == taken || steps == end));
}

/// A copy has the same frames, numbered on.
fn copy(batch: &FrameBatch<'_>, limits: FrameLimits) {
    let mut out = vec![0; batch.bytes().len()];
    let mut placed = 0;
    let end = copy_frames(batch.bytes(), &mut out, Offset(7), |_| placed += 1);
    assert_eq!(placed, batch.frame_count());
    assert_eq!(end, Offset(7 + batch.record_count()));
    let again = FrameBatch::parse(&out, &limits).expect("a copy of checked frames");
    let mut next = Offset(7);
    for (frame, old) in again.frames().zip(batch.frames()) {
        let (frame, old) = (frame.expect("a frame"), old.expect("a frame"));
        assert_eq!(frame.header.offset, next);
        assert_eq!(frame.key, old.key);
        next = frame.header.end_offset();
    }
}
