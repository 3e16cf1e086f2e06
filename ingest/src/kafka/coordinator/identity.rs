//! Who a member is, and how it is answered.

use std::sync::Arc;

use tokio::sync::oneshot;

/// A name that a member, an instance or a protocol goes by.
pub(in crate::kafka) type Name = Arc<str>;

/// Who a member says it is.
#[derive(Debug, Clone)]
pub(in crate::kafka) struct Identity {
    pub(in crate::kafka) member_id: Name,
    pub(in crate::kafka) instance_id: Option<Name>,
    /// Or the member's epoch, in a group of the consumer protocol.
    pub(in crate::kafka) generation: i32,
}

pub(super) type Reply<T> = oneshot::Sender<T>;

/// Answers, if anybody waits still.
pub(super) fn answer<T>(reply: Option<Reply<T>>, with: T) {
    if let Some(reply) = reply {
        drop(reply.send(with));
    }
}
