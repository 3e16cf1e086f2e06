//! What a server keeps of a password (RFC 5802, section 3; RFC 7677 for SHA-256): salt, iterations, and two keys, of which one checks a
//! client's proof and the other proves the server.

use hmac::{Hmac, Mac as _};
use pbkdf2::pbkdf2_hmac;
use sha2::{Digest as _, Sha256, Sha512};
use subtle::ConstantTimeEq as _;

use crate::users::Users;

/// Iterations of a new credential: the most that Kafka's own tools allow, about 10 ms of a core.
pub(crate) const ITERATIONS: u32 = 16_384;
/// The fewest that clients accept (RFC 7677), and the most that are believed of a file.
pub(crate) const MIN_ITERATIONS: u32 = 4_096;
pub(crate) const MAX_ITERATIONS: u32 = 1_000_000;
pub(crate) const SALT_BYTES: usize = 24;
/// Bytes a password has at most.
const MAX_PASSWORD_BYTES: usize = 1_024;

/// The hash function of a SCRAM mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// Both, the stronger one last.
    pub(crate) const ALL: [Self; 2] = [Self::Sha256, Self::Sha512];

    /// The mechanism that uses it.
    #[must_use]
    pub(crate) const fn mechanism(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    pub(crate) const fn key_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    pub(crate) fn hmac(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        // HMAC takes a key of any length.
        match self {
            Self::Sha256 => <Hmac<Sha256>>::new_from_slice(key)
                .expect("any length is a key")
                .chain_update(text)
                .finalize()
                .into_bytes()
                .to_vec(),
            Self::Sha512 => <Hmac<Sha512>>::new_from_slice(key)
                .expect("any length is a key")
                .chain_update(text)
                .finalize()
                .into_bytes()
                .to_vec(),
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    fn salted(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut salted = vec![0; self.key_bytes()];
        match self {
            Self::Sha256 => pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted),
            Self::Sha512 => pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut salted),
        }
        salted
    }

    /// The client's key and the server's.
    pub(crate) fn keys(self, password: &[u8], salt: &[u8], iterations: u32) -> (Vec<u8>, Vec<u8>) {
        let salted = self.salted(password, salt, iterations);
        (
            self.hmac(&salted, b"Client Key"),
            self.hmac(&salted, b"Server Key"),
        )
    }
}

/// A password that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// Nothing, or too much.
    #[error("a password has 1 to {MAX_PASSWORD_BYTES} bytes, this one has {found_bytes}")]
    Length {
        /// How many it has.
        found_bytes: usize,
    },
    /// Some clients prepare it (RFC 4013), others, Kafka's among them, do not: they would not agree on it.
    #[error(
        "the password has characters that clients write in different ways (controls, odd spaces, composed letters): use others"
    )]
    Ambiguous,
}

/// What is kept of a password for one mechanism.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    pub(crate) hash: Hash,
    pub(crate) iterations: u32,
    pub(crate) salt: Vec<u8>,
    pub(crate) stored_key: Vec<u8>,
    pub(crate) server_key: Vec<u8>,
}

impl std::fmt::Debug for Credential {
    /// Without what guesses could be tried on.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential")
            .field("hash", &self.hash)
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

/// Refuses what clients would not agree on.
///
/// # Errors
/// See [`PasswordError`].
fn check_password(password: &str) -> Result<(), PasswordError> {
    if password.is_empty() || password.len() > MAX_PASSWORD_BYTES {
        return Err(PasswordError::Length {
            found_bytes: password.len(),
        });
    }
    match stringprep::saslprep(password) {
        Ok(prepared) if prepared == password => Ok(()),
        _ => Err(PasswordError::Ambiguous),
    }
}

impl Credential {
    /// The credential of a password under a salt of its own.
    ///
    /// # Errors
    /// See [`PasswordError`].
    pub(crate) fn of(hash: Hash, password: &str) -> Result<Self, PasswordError> {
        check_password(password)?;
        let mut salt = vec![0; SALT_BYTES];
        fill_random(&mut salt);
        Ok(Self::derived(hash, password.as_bytes(), salt, ITERATIONS))
    }

    pub(crate) fn derived(hash: Hash, password: &[u8], salt: Vec<u8>, iterations: u32) -> Self {
        let (client_key, server_key) = hash.keys(password, &salt, iterations);
        Self {
            hash,
            iterations,
            salt,
            stored_key: hash.digest(&client_key),
            server_key,
        }
    }

    /// A credential that no password has, the same one each time for a name and as those of `users` look: what a stranger is asked.
    pub(crate) fn of_nobody(users: &Users, hash: Hash, name: &str, secret: &[u8; 32]) -> Self {
        let (iterations, salt_bytes) = users.looks(hash).unwrap_or((ITERATIONS, SALT_BYTES));
        let made = |what: &str, bytes: usize| {
            let text = format!("{what}\0{}\0{name}", hash.mechanism());
            let mut made = Hash::Sha512.hmac(secret, text.as_bytes());
            made.truncate(bytes);
            made
        };
        Self {
            hash,
            iterations,
            salt: made("salt", salt_bytes),
            stored_key: made("stored", hash.key_bytes()),
            server_key: made("server", hash.key_bytes()),
        }
    }

    /// Whether this is the password. Takes milliseconds, by intent.
    pub(crate) fn verifies(&self, password: &[u8]) -> bool {
        let found = Self::derived(self.hash, password, self.salt.clone(), self.iterations);
        found.stored_key.ct_eq(&self.stored_key).into()
    }
}

/// Random bytes of the system's.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system has random numbers");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_verifies_and_no_other() {
        for hash in Hash::ALL {
            let credential = Credential::derived(hash, b"pencil", vec![7; 16], MIN_ITERATIONS);
            assert!(credential.verifies(b"pencil"));
            assert!(!credential.verifies(b"Pencil"));
            assert!(!credential.verifies(b""));
        }
    }

    #[test]
    fn a_password_is_what_all_clients_send_alike() {
        for password in ["x", "pass word!", "Grüße", &"p".repeat(1024)] {
            assert_eq!(check_password(password), Ok(()), "{password}");
        }
        for password in ["a\u{a0}b", "e\u{301}", "a\tb", "\u{ff21}"] {
            let found = check_password(password);
            assert_eq!(found, Err(PasswordError::Ambiguous), "{password:?}");
        }
        for password in ["", &"p".repeat(1025)] {
            assert!(matches!(
                check_password(password),
                Err(PasswordError::Length { .. })
            ));
        }
    }

    #[test]
    fn each_credential_has_a_salt_of_its_own_and_shows_none_of_it() {
        let [first, second] = [0, 1].map(|_| Credential::of(Hash::Sha512, "secret").unwrap());
        assert_ne!(first.salt, second.salt);
        assert_ne!(first.stored_key, second.stored_key);
        assert_eq!(
            format!("{first:?}"),
            "Credential { hash: Sha512, iterations: 16384, .. }"
        );
    }

    #[test]
    fn nobody_is_asked_the_same_each_time_and_differs_by_name_and_server() {
        let users = Users::default();
        let of = |name, secret| Credential::of_nobody(&users, Hash::Sha256, name, &[secret; 32]);
        assert_eq!(of("a", 1), of("a", 1));
        assert_ne!(of("a", 1).salt, of("b", 1).salt);
        assert_ne!(of("a", 1).salt, of("a", 2).salt);
        assert_eq!(of("a", 1).salt.len(), SALT_BYTES);
    }
}
