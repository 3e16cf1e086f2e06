use super::*;
use crate::ring::RecordShape;

fn ring(stream: u32) -> Arc<Ring> {
    let shape = RecordShape {
        payload: "uniform:3-9".parse().unwrap(),
        key_bytes: 2,
        compressibility: 0.5,
    };
    Arc::new(Ring::new(&shape, stream))
}

/// The frames that a good server gives for the records `numbers`, at offsets from `base` on.
fn stored(ring: &Ring, base: u64, numbers: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    (base..)
        .zip(numbers)
        .map(|(offset, number)| {
            let mut frame = ring.frame((ring.phase(3) + number) % ring.len()).to_vec();
            frame[OFFSET_AT].copy_from_slice(&offset.to_be_bytes());
            frame
        })
        .collect()
}

fn set_offset(frame: &mut [u8], offset: u64) {
    frame[OFFSET_AT].copy_from_slice(&offset.to_be_bytes());
}

fn tally(level: Verify, frames: &[Vec<u8>]) -> Tally {
    let mut verifier = Verifier::new(level, &[ring(0)], 3, 100, 110);
    let bytes = frames.concat();
    assert_eq!(verifier.check(&bytes, |_| {}).unwrap(), bytes.len());
    verifier.tally
}

#[test]
fn what_was_sent_is_verified_wherever_the_bytes_are_cut() {
    let ring = ring(0);
    let count = ring.len() + 50;
    let bytes = stored(&ring, 100, 0..count).concat();
    for cut in [1, 28, 29, 40, 1000, bytes.len()] {
        let mut verifier = Verifier::new(Verify::Full, &[Arc::clone(&ring)], 3, 100, u64::MAX);
        let (mut start, mut end, mut numbers) = (0, 0, 0);
        while start < bytes.len() {
            end = bytes.len().min(end + cut);
            start += verifier
                .check(&bytes[start..end], |run| {
                    assert_eq!((run.stream, run.first), (0, numbers));
                    numbers += run.count;
                })
                .unwrap();
        }
        let count = count as u64;
        let right = Tally {
            seen: count,
            verified: count,
            frame_bytes: bytes.len() as u64,
            ..Tally::default()
        };
        assert_eq!((verifier.tally, numbers), (right, count));
    }
}

#[test]
fn a_missing_record_is_found_at_every_level_that_looks() {
    let mut frames = stored(&ring(0), 100, 0..10);
    frames.remove(4);
    for level in [Verify::Headers, Verify::Full] {
        let tally = tally(level, &frames);
        assert_eq!((tally.seen, tally.missing), (9, 1), "{level:?}");
        assert_eq!(tally.verified, 8, "the one behind the gap is out of order");
    }
}

#[test]
fn a_lost_record_whose_offset_was_given_to_the_next_one_is_found() {
    let frames = stored(&ring(0), 100, (0..4).chain(5..11));
    assert_eq!(
        tally(Verify::Headers, &frames).verified,
        10,
        "dense offsets are all that headers show"
    );
    let tally = tally(Verify::Full, &frames);
    assert_eq!((tally.verified, tally.reordered), (9, 1));
}

#[test]
fn a_doubled_record_is_found() {
    let mut twice = stored(&ring(0), 100, 0..9);
    twice.insert(5, twice[4].clone());
    assert_eq!(
        (
            tally(Verify::Full, &twice).doubled,
            tally(Verify::Headers, &twice).doubled
        ),
        (1, 1)
    );
    let stored_twice = stored(&ring(0), 100, (0..5).chain(4..9));
    let tally = tally(Verify::Full, &stored_twice);
    assert_eq!((tally.seen, tally.verified, tally.reordered), (10, 9, 1));
}

#[test]
fn every_changed_bit_is_found() {
    let good = stored(&ring(0), 100, 0..10);
    for bit in 0..good[5].len() * 8 {
        let mut frames = good.clone();
        frames[5][bit / 8] ^= 1 << (bit % 8);
        let mut verifier = Verifier::new(Verify::Full, &[ring(0)], 3, 100, 110);
        // A changed length makes the rest unreadable, which is an error or leaves bytes over.
        let checked = verifier.check(&frames.concat(), |_| {});
        let all = checked.is_ok_and(|checked| checked == frames.concat().len());
        assert!(!all || verifier.tally.verified < 10, "bit {bit}");
        assert!(verifier.tally.verified >= 5, "bit {bit}");
    }
}

#[test]
fn records_that_changed_places_are_found() {
    let frames = stored(&ring(0), 100, [0, 1, 3, 2, 4, 5, 6, 7, 8, 9]);
    assert!(tally(Verify::Full, &frames).reordered >= 2);
    let mut moved = stored(&ring(0), 100, 0..10);
    moved.swap(2, 3);
    let tally = tally(Verify::Headers, &moved);
    assert_eq!((tally.missing, tally.doubled), (1, 1));
}

#[test]
fn records_of_another_partition_are_not_at_home() {
    let mut verifier = Verifier::new(Verify::Full, &[ring(0)], 4, 100, 110);
    verifier
        .check(&stored(&ring(0), 100, 0..10).concat(), |_| {})
        .unwrap();
    assert_eq!(verifier.tally.reordered, 1, "then it follows");
    assert_eq!(verifier.tally.verified, 9);
}

#[test]
fn senders_that_share_a_partition_are_told_apart() {
    let rings = [ring(0), ring(1)];
    let mut frames = stored(&rings[0], 100, 0..3);
    frames.extend(stored(&rings[1], 103, 0..3));
    frames.extend(stored(&rings[0], 106, 3..4));
    frames.extend(stored(&rings[1], 107, 3..6));
    let mut verifier = Verifier::new(Verify::Full, &rings, 3, 100, 110);
    let mut counts = [0, 0];
    verifier
        .check(&frames.concat(), |run| {
            assert_eq!(run.first, counts[run.stream]);
            counts[run.stream] += run.count;
        })
        .unwrap();
    assert_eq!((verifier.tally.verified, counts), (10, [4, 6]));
    let lost = stored(&rings[1], 103, 1..4);
    frames.splice(3..6, lost);
    let mut verifier = Verifier::new(Verify::Full, &rings, 3, 100, 110);
    verifier.check(&frames.concat(), |_| {}).unwrap();
    assert_eq!(verifier.tally.reordered, 2);
}

#[test]
fn frames_outside_the_range_are_not_counted() {
    let mut before = stored(&ring(0), 100, 0..1);
    set_offset(&mut before[0], 99);
    let inside = stored(&ring(0), 100, 0..12);
    let bytes = [before.concat(), inside.concat()].concat();
    let mut verifier = Verifier::new(Verify::Full, &[ring(0)], 3, 100, 110);
    let left: usize = inside[10..].iter().map(Vec::len).sum();
    assert_eq!(verifier.check(&bytes, |_| {}).unwrap(), bytes.len() - left);
    assert!(verifier.is_done());
    assert_eq!((verifier.tally.seen, verifier.tally.verified), (10, 10));
}

#[test]
fn bytes_that_are_no_frame_are_an_error() {
    let mut verifier = Verifier::new(Verify::Full, &[ring(0)], 3, 100, 110);
    assert_eq!(
        verifier.check(&[7; 64], |_| {}),
        Err(FrameError::UnknownMagic { found: 7 })
    );
}
