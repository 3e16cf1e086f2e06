//! The one small vocabulary of refusals, the same in acks, in session responses and in the client.

use std::fmt;

macro_rules! error_kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Why the server refused, in terms of what the caller should do. One byte on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum ErrorKind {
            $($(#[$doc])* $name = $code,)*
        }

        impl ErrorKind {
            /// Every kind, in the order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The byte on the wire.
            #[must_use]
            pub const fn code(self) -> u8 {
                match self { $(Self::$name => $code,)* }
            }

            /// The kind of a byte from the wire; `None` for a code this version does not know.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// What went wrong, in a few words.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

error_kinds! {
    /// The frame breaks its format (magic, batch checksum, counts). Fix the producer; the same bytes fail again.
    InvalidFrame = 1, "invalid frame";
    /// A key, payload or request is over the server's limit. Send smaller ones or raise the limit.
    TooLarge = 2, "too large";
    /// A topic or group name is outside `[A-Za-z0-9._-]{1,249}`, or `.` or `..`. Use another name.
    InvalidName = 3, "invalid name";
    /// No such topic, and it may not be created on first use. Create it.
    UnknownTopic = 4, "unknown topic";
    /// The topic has no partition of that number. Ask for its metadata.
    UnknownPartition = 5, "unknown partition";
    /// The server's disk is full; nothing was stored. Free space; retry after the given time.
    StorageFull = 6, "storage full";
    /// The server's disk failed; the partition takes no writes until it is opened again. Call the operator.
    StorageFailed = 7, "storage failed";
    /// Too much is in flight. Retry after the given time.
    Busy = 8, "busy";
    /// The server is stopping. Retry there later, or elsewhere.
    ShuttingDown = 9, "shutting down";
    /// The offset is before the log start or beyond the high watermark (both are in the response). Choose another.
    OffsetOutOfRange = 10, "offset out of range";
    /// Stored bytes fail their checksum. Read on from behind the damage; call the operator.
    Corrupt = 11, "corrupt";
    /// The request cannot be understood, or asks for what makes no sense. Fix the client.
    InvalidRequest = 12, "invalid request";
    /// A topic of that name exists. Use it, or another name.
    TopicExists = 13, "topic exists";
    /// A fault of the server's own. Report it.
    Internal = 14, "internal error";
    /// It took too long; whether it was done is not known. Ask, or retry.
    TimedOut = 15, "timed out";
    /// The timestamp cannot be kept as nanoseconds in 64 bits. Fix the producer's unit.
    InvalidTimestamp = 16, "invalid timestamp";
    /// The server does not speak that version. Use an older client, or upgrade the server.
    UnsupportedVersion = 17, "unsupported version";
    /// A configuration key or value is not known. Fix the request.
    InvalidConfig = 18, "invalid configuration";
    /// What was asked for is not there. Ask for something else.
    NotFound = 19, "not found";
    /// The caller has not proved who it is, or could not. Log in with a user that the server knows.
    Unauthenticated = 20, "not authenticated";
}

impl ErrorKind {
    /// Whether the same request may succeed later without anything being changed in it.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::StorageFull | Self::Busy | Self::ShuttingDown | Self::TimedOut
        )
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_names_one_kind_and_no_other_byte_does() {
        for code in 0..=u8::MAX {
            match ErrorKind::from_code(code) {
                Some(kind) => assert_eq!(kind.code(), code),
                None => assert!(code == 0 || code > 20, "{code}"),
            }
        }
        assert_eq!(ErrorKind::ALL.len(), 20);
    }
}
