//! The client's side of an exchange: SCRAM-SHA-256, which proves the server to the client too, and sends no password.

use subtle::ConstantTimeEq as _;

use crate::credential::Hash;
use crate::scram::{self, Client};

/// A server that does not keep to the exchange, or does not know the password itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server does not prove that it knows the user: is it the right server?")]
pub struct ServerUnproved;

/// An exchange under way.
pub struct ClientExchange {
    password: String,
    state: State,
}

enum State {
    Begun(Client),
    /// What the server has to say.
    Proved(String),
    Ended,
}

impl std::fmt::Debug for ClientExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientExchange").finish_non_exhaustive()
    }
}

impl ClientExchange {
    /// The mechanism to name to the server.
    pub const MECHANISM: &'static str = Hash::Sha256.mechanism();

    /// Begins; with the first message to the server.
    #[must_use]
    pub fn start(user: &str, password: &str) -> (Self, Vec<u8>) {
        let (client, message) = Client::start(Hash::Sha256, user, scram::nonce());
        let exchange = Self {
            password: password.to_owned(),
            state: State::Begun(client),
        };
        (exchange, message.into_bytes())
    }

    /// Takes what the server said, and says what goes back; `None` when the server has proved itself and nothing does. Works
    /// through the password, for milliseconds.
    ///
    /// # Errors
    /// [`ServerUnproved`].
    pub fn step(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, ServerUnproved> {
        let message = std::str::from_utf8(message).map_err(|_| ServerUnproved)?;
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Begun(client) => {
                let proved = client.prove(message, &self.password);
                let (message, expected) = proved.ok_or(ServerUnproved)?;
                self.state = State::Proved(expected);
                Ok(Some(message.into_bytes()))
            }
            State::Proved(expected) if message.as_bytes().ct_eq(expected.as_bytes()).into() => {
                Ok(None)
            }
            State::Proved(_) | State::Ended => Err(ServerUnproved),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::{Credential, Hash};

    #[test]
    fn a_server_that_does_not_know_the_password_is_found_out() {
        let finish = |last: &dyn Fn(&str) -> String| {
            let (mut client, first) = ClientExchange::start("user", "pencil");
            let first = String::from_utf8(first).unwrap();
            let credential =
                |_: &str| Credential::derived(Hash::Sha256, b"pencil", vec![7; 16], 4096);
            let server = scram::Server::start(&first, "more", credential).unwrap();
            let proof = client
                .step(server.server_first.as_bytes())
                .unwrap()
                .unwrap();
            let right = server.finish(str::from_utf8(&proof).unwrap()).unwrap();
            let finished = client.step(last(&right).as_bytes());
            assert_eq!(
                client.step(right.as_bytes()),
                Err(ServerUnproved),
                "it is over"
            );
            finished
        };
        assert_eq!(finish(&str::to_owned), Ok(None));
        for wrong in ["", "v=", "v=AAAA", "e=other-error"] {
            assert_eq!(
                finish(&|_| wrong.to_owned()),
                Err(ServerUnproved),
                "{wrong}"
            );
        }
        assert_eq!(finish(&|right| format!("{right},x=y")), Err(ServerUnproved));
    }
}
