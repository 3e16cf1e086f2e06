//! The server's side of an exchange: SASL (RFC 4422) by PLAIN (RFC 4616) or SCRAM.

use std::sync::Arc;

use crate::authenticator::Shared;
use crate::credential::{Credential, Hash};
use crate::name::UserName;
use crate::scram;

/// What a client may choose from, the best first.
pub const MECHANISMS: [&str; 3] = [
    Hash::Sha512.mechanism(),
    Hash::Sha256.mechanism(),
    Mechanism::Plain.name(),
];

/// Bytes a client's message has at most.
const MAX_MESSAGE_BYTES: usize = 8 << 10;

#[derive(Debug, Clone, Copy)]
enum Mechanism {
    Plain,
    Scram(Hash),
}

impl Mechanism {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Scram(hash) => hash.mechanism(),
        }
    }

    fn of(name: &str) -> Option<Self> {
        let all = [
            Self::Plain,
            Self::Scram(Hash::Sha256),
            Self::Scram(Hash::Sha512),
        ];
        all.into_iter().find(|mechanism| mechanism.name() == name)
    }
}

/// What comes of a client's message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// The client is to be sent this, and to answer it.
    Continue(Vec<u8>),
    /// The client is who it says, and is to be sent this.
    Done {
        /// Who.
        user: UserName,
        /// The proof that the server knows the user too; nothing for PLAIN.
        message: Vec<u8>,
    },
    /// The client did not prove it. Nothing more is said of why (AUTH-2).
    Refused,
}

/// An exchange under way.
pub struct Exchange {
    shared: Arc<Shared>,
    state: State,
}

#[derive(Debug)]
enum State {
    First(Mechanism),
    Proof(Box<scram::Server>),
    Ended,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}

impl Exchange {
    /// None if there is no such mechanism.
    pub(crate) fn start(shared: &Arc<Shared>, mechanism: &str) -> Option<Self> {
        Some(Self {
            shared: Arc::clone(shared),
            state: State::First(Mechanism::of(mechanism)?),
        })
    }

    /// Takes the client's next message. An exchange that has ended refuses.
    pub async fn step(&mut self, message: &[u8]) -> Step {
        let state = std::mem::replace(&mut self.state, State::Ended);
        self.next(state, message).await.unwrap_or(Step::Refused)
    }

    async fn next(&mut self, state: State, message: &[u8]) -> Option<Step> {
        if message.len() > MAX_MESSAGE_BYTES {
            return None;
        }
        let message = std::str::from_utf8(message).ok()?;
        match state {
            State::First(Mechanism::Plain) => {
                let mut parts = message.split('\0');
                let (acts_for, name, password) = (parts.next()?, parts.next()?, parts.next()?);
                if parts.next().is_some() || !may_act(name, acts_for) {
                    return None;
                }
                let (user, _) = self.shared.verified(name, password).await?;
                let message = Vec::new();
                Some(Step::Done { user, message })
            }
            State::First(Mechanism::Scram(hash)) => {
                let users = self.shared.users();
                let credential_of = |name: &str| match users.credential(name, hash) {
                    Some(credential) => credential.clone(),
                    None => Credential::of_nobody(&users, hash, name, &self.shared.secret),
                };
                let server = scram::Server::start(message, &scram::nonce(), credential_of)?;
                let message = server.server_first.clone().into_bytes();
                self.state = State::Proof(Box::new(server));
                Some(Step::Continue(message))
            }
            State::Proof(server) => {
                let message = server.finish(message)?.into_bytes();
                let user = UserName::new(&server.name).ok()?;
                // Whoever was taken out meanwhile, or has another password, is not let in.
                let users = self.shared.users();
                let still = users.credential(&server.name, server.credential.hash);
                if still != Some(&server.credential) {
                    return None;
                }
                may_act(&server.name, server.acts_for.as_deref().unwrap_or_default())
                    .then_some(Step::Done { user, message })
            }
            State::Ended => None,
        }
    }
}

/// Nobody acts for others.
fn may_act(name: &str, acts_for: &str) -> bool {
    acts_for.is_empty() || acts_for == name
}
