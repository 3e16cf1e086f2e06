//! Checking frames before they are appended, without holding up those who wait for the same thread.
//!
//! Record frames are checked by their headers alone, in place. A batch frame is decompressed and read to its last record,
//! and a few kilobytes of it may hold as much as the largest payload: that is done beside the threads that serve sockets,
//! by few at a time, and a producer's frames in turns of about [`TURN_BYTES`].
//!
//! ING-6: no batch is decompressed on a thread that serves sockets, and at most half of the processors do so, be it for
//! producers or for consumers.

use basalt_proto::{FrameBatch, FrameCheck, FrameError, FramePrefix};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// What of a producer's frames is checked before others get their turn, once there is a batch frame among them; one
/// that is longer is checked whole. At the worst 5 KB of it decompress to the largest payload.
const TURN_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Verifier {
    places: Semaphore,
}

/// The frames at the start of a buffer, as far as they were checked.
#[derive(Debug)]
pub(crate) struct Turn<'b> {
    pub(crate) prefix: FramePrefix<'b>,
    /// Whole frames may follow that this turn did not get to: unless a frame was refused, what ended the prefix is no
    /// reason to wait for bytes.
    pub(crate) more: bool,
}

impl Verifier {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            places: Semaphore::new((processors / 2).max(1)),
        }
    }

    /// Checks the frames at the start of a buffer of `bytes`: all of them if they are record frames, else as many as one turn takes,
    /// but at least one.
    pub(crate) async fn prefix<'b>(&self, mut check: FrameCheck<'b>, bytes: usize) -> Turn<'b> {
        let Some(end) = check.records() else {
            return Turn {
                prefix: check.finish(bytes),
                more: false,
            };
        };
        let end = end.max(TURN_BYTES).min(bytes);
        Turn {
            prefix: self.beside(|| check.finish(end)).await,
            more: end < bytes,
        }
    }

    /// Goes on with a check that [`whole_at_once`] began.
    ///
    /// # Errors
    /// As [`FrameBatch::parse`].
    pub(crate) async fn whole<'b>(
        &self,
        check: FrameCheck<'b>,
    ) -> Result<FrameBatch<'b>, FrameError> {
        self.beside(|| check.finish(usize::MAX)).await.into_whole()
    }

    /// Runs what takes long, when there is a place for it, with the other tasks of this thread moved to another one.
    pub(crate) async fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        // Never closed: without a place is better than not at all.
        let _place = self.places.acquire().await.ok();
        match Handle::current().runtime_flavor() {
            // There is no other thread to move to.
            RuntimeFlavor::CurrentThread => work(),
            _ => tokio::task::block_in_place(work),
        }
    }

    /// All places, so that a test can see what waits for one.
    #[cfg(test)]
    pub(crate) async fn take_all(&self) -> tokio::sync::SemaphorePermit<'_> {
        let all = u32::try_from(self.places.available_permits()).unwrap();
        self.places.acquire_many(all).await.unwrap()
    }
}

/// Checks that there are whole frames that may be appended together, and nothing else; a check to go on with if there
/// is a batch frame among them, so that it may take long.
pub(crate) fn whole_at_once(
    mut check: FrameCheck<'_>,
) -> Result<Result<FrameBatch<'_>, FrameError>, FrameCheck<'_>> {
    match check.records() {
        None => Ok(check.finish(usize::MAX).into_whole()),
        Some(_) => Err(check),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use basalt_proto::batch::{BatchFields, BatchWriter, Compression, RecordToWrite};
    use basalt_proto::{Frame, FrameLimits, FrameStop};

    use super::*;

    fn record_frame(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Frame::record(1, b"k", payload).encode_into(&mut out);
        out
    }

    fn batch_frame(value: &[u8]) -> Vec<u8> {
        let mut writer = BatchWriter::new(BatchFields::compressed(Compression::Zstd)).unwrap();
        let record = RecordToWrite {
            timestamp_ms: 1,
            key: None,
            value: Some(value),
            headers: &[],
        };
        writer.push(&record).unwrap();
        let mut batch = Vec::new();
        writer.finish(&mut batch).unwrap();
        let mut out = Vec::new();
        Frame::batch(1, &batch, 1).encode_into(&mut out);
        out
    }

    #[tokio::test]
    async fn only_what_may_take_long_is_put_off() {
        let (record, batch) = (record_frame(&[0x02; 100]), batch_frame(b"v"));
        let whole_at_once =
            |bytes| super::whole_at_once(FrameCheck::new(bytes, FrameLimits::default()));
        let records = record.repeat(3);
        let at_once = whole_at_once(&records).map(|batch| batch.map(|good| good.bytes()));
        assert!(matches!(at_once, Ok(Ok(bytes)) if bytes == records));
        let cut = whole_at_once(&records[..records.len() - 1]);
        assert!(matches!(cut, Ok(Err(FrameError::Incomplete { .. }))));
        assert!(matches!(whole_at_once(&[]), Ok(Err(FrameError::Empty))));
        let mixed = [records.clone(), batch, record].concat();
        let check = whole_at_once(&mixed).unwrap_err();
        let whole = Verifier::new().whole(check).await.unwrap();
        assert_eq!((whole.bytes(), whole.frame_count()), (&mixed[..], 5));
    }

    #[tokio::test]
    async fn batch_frames_are_checked_in_turns_that_together_take_all() {
        let batch = batch_frame(b"some value");
        let count = 4 * TURN_BYTES / batch.len();
        let (verifier, limits) = (Verifier::new(), FrameLimits::default());
        let bytes = [batch.repeat(count), record_frame(b"last")].concat();
        let (mut start, mut frames, mut turns) = (0, 0, 0);
        loop {
            let check = FrameCheck::new(&bytes[start..], limits);
            let Turn { prefix, more } = verifier.prefix(check, bytes.len() - start).await;
            let good = prefix.batch.unwrap();
            assert!(!more || good.bytes().len() <= TURN_BYTES);
            start += good.bytes().len();
            frames += good.frame_count();
            turns += 1;
            if !more {
                assert_eq!(prefix.stop, FrameStop::End);
                break;
            }
        }
        assert_eq!((start, frames), (bytes.len(), count + 1));
        assert!(turns >= 4, "{turns} turns");
    }

    #[tokio::test]
    async fn frame_longer_than_a_turn_is_checked_whole() {
        // Unlike a run of one byte this does not compress to nothing.
        let mut state = 1_u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .take(3 * TURN_BYTES)
        .collect();
        let bytes = batch_frame(&noise).repeat(2);
        let check = FrameCheck::new(&bytes, FrameLimits::default());
        let Turn { prefix, more } = Verifier::new().prefix(check, bytes.len()).await;
        assert_eq!(prefix.batch.unwrap().bytes().len(), bytes.len() / 2);
        assert!(more);
    }

    /// With one thread in all, the work would wait for ever for a task of that thread.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_of_the_thread_go_on_beside_the_work() {
        let verified = tokio::spawn(async {
            let (sender, receiver) = mpsc::channel();
            tokio::spawn(async move { sender.send(()) });
            let work = move || receiver.recv_timeout(Duration::from_secs(10));
            Verifier::new().beside(work).await
        });
        assert_eq!(verified.await.unwrap(), Ok(()));
    }
}
