//! Answers that are ready as soon as their request is read: gathered, and written together by the reading half itself.
//!
//! The halves take turns at the socket: the reading half writes only while the answering half is between two messages
//! ([`Turn`]), and what it could not finish the answering half finishes before anything else.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Answer, MAX_COALESCED_BYTES};
use crate::connection::Connection;

/// Whose turn it is to write. Both halves are one task, so that nobody waits for the lock.
#[derive(Debug, Clone, Default)]
pub(super) struct Turn(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The answering half is writing.
    answering: bool,
    /// The end of a message that the reading half has begun.
    begun: Vec<u8>,
}

impl Turn {
    /// Begins a turn of the answering half: what has to be written first.
    pub(super) fn begin(&self) -> Vec<u8> {
        let mut state = self.0.lock();
        state.answering = true;
        std::mem::take(&mut state.begun)
    }

    /// The answering half has written whole messages.
    pub(super) fn end(&self) {
        self.0.lock().answering = false;
    }
}

/// Whole messages that nothing holds back.
#[derive(Debug)]
pub(super) struct Ready {
    turn: Turn,
    out: Vec<u8>,
}

/// What the answering half has to write.
#[derive(Debug)]
pub(super) enum Left {
    /// Messages of its own.
    Messages(Vec<u8>),
    /// So many bytes of a message that is begun.
    Begun(usize),
}

impl Ready {
    pub(super) const fn new(turn: Turn) -> Self {
        Self {
            turn,
            out: Vec::new(),
        }
    }

    /// Where messages are put.
    pub(super) const fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Whether it is time to write.
    pub(super) const fn is_full(&self) -> bool {
        self.out.len() >= MAX_COALESCED_BYTES
    }

    /// Writes what the socket takes without waiting, if it is this half's turn; what is left for the other.
    pub(super) fn send(&mut self, connection: &Connection<'_>) -> Option<Left> {
        if self.out.is_empty() {
            return None;
        }
        let mut state = self.turn.0.lock();
        if state.answering || !state.begun.is_empty() {
            return Some(Left::Messages(std::mem::take(&mut self.out)));
        }
        // A socket that failed fails again, for the half that reports it.
        match connection.try_send(&self.out).unwrap_or(0) {
            0 => Some(Left::Messages(std::mem::take(&mut self.out))),
            sent if sent < self.out.len() => {
                state.begun = self.out.split_off(sent);
                self.out.clear();
                Some(Left::Begun(state.begun.len()))
            }
            _ => {
                self.out.clear();
                self.out.shrink_to(MAX_COALESCED_BYTES);
                None
            }
        }
    }
}

impl Left {
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Messages(messages) => messages.len(),
            Self::Begun(bytes) => *bytes,
        }
    }

    pub(super) fn into_answer(self) -> Answer {
        match self {
            Self::Messages(messages) => Answer::Message(messages),
            Self::Begun(_) => Answer::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::ShutdownTrigger;
    use crate::read_ahead::Lane;
    use crate::tests::{patient, shared, stream_pair};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_written_into_a_message_of_the_other_half() {
        let (_dir, shared) = shared(|_| {}).await;
        let (mut peer, stream) = stream_pair().await;
        let trigger = ShutdownTrigger::new();
        let shutdown = trigger.signal();
        let connection = Connection {
            stream: &stream,
            peer: peer.local_addr().unwrap(),
            shared: &shared,
            shutdown: &shutdown,
            lane: Lane::new(&shared.read_ahead),
        };
        let turn = Turn::default();
        let mut ready = Ready::new(turn.clone());
        assert!(ready.send(&connection).is_none(), "there is nothing");

        assert!(turn.begin().is_empty());
        ready.out().extend_from_slice(b"behind");
        let left = ready.send(&connection);
        assert!(matches!(left, Some(Left::Messages(messages)) if messages == b"behind"));
        turn.end();

        // More than the buffers of a connection hold.
        ready.out().resize(64 << 20, 7);
        let Some(Left::Begun(rest_bytes)) = ready.send(&connection) else {
            panic!("a part of it fits");
        };
        let sent_bytes = (64 << 20) - rest_bytes;
        patient(peer.read_exact(&mut vec![0; sent_bytes]))
            .await
            .unwrap();
        patient(stream.writable()).await.unwrap();
        ready.out().extend_from_slice(b"next");
        let left = ready.send(&connection);
        assert!(matches!(left, Some(Left::Messages(messages)) if messages == b"next"));
        assert_eq!(turn.begin(), vec![7; rest_bytes]);
        turn.end();

        ready.out().extend_from_slice(b"now");
        assert!(ready.send(&connection).is_none());
        let mut received = [0; 3];
        patient(peer.read_exact(&mut received)).await.unwrap();
        assert_eq!(&received, b"now");
    }
}
