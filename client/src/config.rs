//! What can be chosen. Plain structs: no files, no environment.

use std::time::Duration;

use basalt_proto::Offset;
use basalt_proto::session::AckLevel;

/// Where the server is, and how patient to be with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// `HOST:PORT`. Default `127.0.0.1:9092`.
    pub address: String,
    /// Who to say that one is, to a server that asks. None unless set.
    pub credentials: Option<Credentials>,
    /// For the TCP connection and the greeting together, and for proving who one is. Default 5 s.
    pub connect_timeout: Duration,
    /// For one response, beside what the request itself asks the server to wait. Default 30 s.
    pub request_timeout: Duration,
    /// What to do when the connection is lost.
    pub reconnect: Reconnect,
    /// The largest response that is accepted, in bytes: at least the largest frame on the server. Default 256 MiB.
    pub max_response_bytes: u32,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:9092".to_owned(),
            credentials: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            reconnect: Reconnect::default(),
            max_response_bytes: 256 << 20,
        }
    }
}

/// A user's name and password. The password is never sent: the exchange is SCRAM-SHA-256.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// How a lost connection is replaced: the first failure is followed by a wait of `initial_backoff`, each further one by
/// twice the last wait, up to `max_backoff`. An answer from the server starts the count anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconnect {
    /// The first wait. Default 50 ms.
    pub initial_backoff: Duration,
    /// The longest wait. Default 2 s.
    pub max_backoff: Duration,
    /// Give up after so many failures in a row; 0 gives up at the first. Default 10, about 12 s.
    pub max_attempts: u32,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            initial_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            max_attempts: 10,
        }
    }
}

impl Reconnect {
    /// The wait after `failure_count` failures in a row; `None` when it is time to give up.
    pub(crate) fn wait_after(&self, failure_count: u32) -> Option<Duration> {
        if failure_count > self.max_attempts {
            return None;
        }
        let doublings = failure_count.saturating_sub(1).min(20);
        Some(
            self.initial_backoff
                .saturating_mul(1 << doublings)
                .min(self.max_backoff),
        )
    }
}

/// What [`crate::Producer::send`] does when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Waits until there is room.
    #[default]
    Wait,
    /// Fails at once with [`crate::SendError::QueueFull`].
    Fail,
}

/// How records are gathered, sent and waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerConfig {
    /// How long a batch that is not full waits for more records. Zero sends as soon as a request is free, which gathers
    /// whatever comes meanwhile. Default 1 ms.
    pub linger: Duration,
    /// A batch is sent once it has as many bytes of frames; a larger record goes alone. Default 512 KiB.
    pub batch_bytes: usize,
    /// Batches on their way at once; 0 counts as 1. Default 8. A refused batch does not hold back those behind it, so
    /// with more than 1 a refusal can leave a hole in the order.
    pub max_in_flight: usize,
    /// When a batch is acknowledged. Default: as the topic says.
    pub ack: AckLevel,
    /// What to do when the queue is full. Default: wait.
    pub when_full: WhenFull,
    /// What the server does with a batch that would have to wait there, for memory or for the disk: `None` lets it wait,
    /// else it is refused once that would take longer, with [`crate::SendError::Refused`], kind busy and when to try again.
    /// Whole milliseconds. Default: wait.
    pub max_queue_wait: Option<Duration>,
    /// Bytes of frames that are held, from `send` to the outcome. Also the largest record. Default 64 MiB.
    pub queue_bytes: u32,
    /// Send batches again whose connection was lost before the answer. They may then be stored twice (at least once).
    /// Default off: they fail with [`crate::SendError::OutcomeUnknown`] (at most once).
    pub retry_lost: bool,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            linger: Duration::from_millis(1),
            batch_bytes: 512 << 10,
            max_in_flight: 8,
            ack: AckLevel::TopicDefault,
            when_full: WhenFull::Wait,
            max_queue_wait: None,
            queue_bytes: 64 << 20,
            retry_lost: false,
        }
    }
}

/// What is read, and how much at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerConfig {
    /// Stop before this offset; `None` never stops. Default `None`.
    pub end_offset: Option<Offset>,
    /// Bytes of frames in a response, at most, but never less than one frame. Default 1 MiB.
    pub max_bytes: u32,
    /// Bytes that the server waits for before it answers. Default 1.
    pub min_bytes: u32,
    /// How long the server waits for them. A consumer asks again at once, so this is only how often it hears from a quiet
    /// server. Default 10 s.
    pub max_wait: Duration,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            end_offset: None,
            max_bytes: 1 << 20,
            min_bytes: 1,
            max_wait: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_then_end() {
        let reconnect = Reconnect {
            initial_backoff: Duration::from_millis(10),
            max_backoff: Duration::from_millis(35),
            max_attempts: 4,
        };
        let waits: Vec<_> = (1..=5)
            .map(|failures| reconnect.wait_after(failures))
            .collect();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(waits, [ms(10), ms(20), ms(35), ms(35), None]);
        assert_eq!(
            Reconnect {
                max_attempts: 0,
                ..reconnect
            }
            .wait_after(1),
            None
        );
        let endless = Reconnect {
            max_attempts: u32::MAX,
            ..reconnect
        };
        assert_eq!(endless.wait_after(u32::MAX), ms(35));
    }
}
