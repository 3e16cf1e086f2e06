//! Users, and how they prove who they are: one file of users, three SASL mechanisms for the binary protocols, passwords and bearer
//! tokens for HTTP.
//!
//! It knows no socket and no protocol's messages, and says who somebody is, never what they may do: whoever is a user may do everything.
//!
//! Start with [`Authenticator::open`] on a server and with [`ClientExchange`] on a client; [`Users`] is the file.
//!
//! Invariants:
//! - **AUTH-1**: no password is stored, logged or sent back. The file holds what RFC 5802 lets a server hold: enough to check a
//!   password; to log in with it takes an exchange that was listened to.
//! - **AUTH-2**: a name that is no user's takes the same steps and the same answers as a wrong password (but for its salt, which is another
//!   one after a restart).
//! - **AUTH-3**: a password is worked through on no thread that serves others, and one at a time: guessing holds one core at most. What
//!   was right before waits for nobody.
//! - **AUTH-5**: what is let in, and what a token is made of, is the credential that was shown to be right.
//! - **AUTH-4**: a file that cannot be read, or makes no sense, admits nobody new: what was read before goes on to count.
#![forbid(unsafe_code)]

mod authenticator;
mod client;
mod credential;
mod exchange;
mod name;
mod scram;
mod tokens;
mod users;

pub use authenticator::{Authenticator, Identity};
pub use client::{ClientExchange, ServerUnproved};
pub use credential::PasswordError;
pub use exchange::{Exchange, MECHANISMS, Step};
pub use name::{UserName, UserNameError};
pub use users::{Users, UsersError};
