//! SCRAM's messages and proofs, for both sides (RFC 5802; RFC 7677 for SHA-256), without channel binding.
//!
//! | step | message |
//! |---|---|
//! | client's first | `n,[a=AUTHZID],n=NAME,r=NONCE` |
//! | server's first | `r=NONCE AND MORE,s=SALT,i=ITERATIONS` |
//! | client's last | `c=BASE64 OF "n,[a=AUTHZID],",r=NONCE AND MORE,p=PROOF` |
//! | server's last | `v=SIGNATURE` |

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq as _;

use crate::credential::{Credential, Hash, MAX_ITERATIONS, MIN_ITERATIONS, fill_random};

const NONCE_BYTES: usize = 18;

pub(crate) fn nonce() -> String {
    let mut nonce = [0; NONCE_BYTES];
    fill_random(&mut nonce);
    STANDARD.encode(nonce)
}

/// The value of the field `key` at the front of `text`, and what is behind its comma.
fn field<'a>(text: &'a str, key: &str) -> Option<(&'a str, &'a str)> {
    let text = text.strip_prefix(key)?.strip_prefix('=')?;
    Some(text.split_once(',').unwrap_or((text, "")))
}

/// The server, once it knows who wants to come in.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) credential: Credential,
    pub(crate) name: String,
    /// Whom the client wants to act for, if it says so.
    pub(crate) acts_for: Option<String>,
    binding: String,
    nonce: String,
    client_first_bare: String,
    pub(crate) server_first: String,
}

impl Server {
    /// Takes the client's first message; `None` if it is none.
    pub(crate) fn start(
        message: &str,
        nonce: &str,
        credential_of: impl FnOnce(&str) -> Credential,
    ) -> Option<Self> {
        // `y`: it could bind channels and thinks that the server cannot, which is so.
        let rest = message
            .strip_prefix("n,")
            .or_else(|| message.strip_prefix("y,"))?;
        let (acts_for, bare) = rest.split_once(',')?;
        let acts_for = match acts_for {
            "" => None,
            acts_for => Some(acts_for.strip_prefix("a=")?.to_owned()),
        };
        // A mandatory extension, `m=`, would stand here.
        let (name, rest) = field(bare, "n")?;
        let (client_nonce, _extensions) = field(rest, "r")?;
        if client_nonce.is_empty() {
            return None;
        }
        let credential = credential_of(name);
        let nonce = format!("{client_nonce}{nonce}");
        let salt = STANDARD.encode(&credential.salt);
        Some(Self {
            name: name.to_owned(),
            acts_for,
            binding: STANDARD.encode(&message[..message.len() - bare.len()]),
            client_first_bare: bare.to_owned(),
            server_first: format!("r={nonce},s={salt},i={}", credential.iterations),
            nonce,
            credential,
        })
    }

    /// Takes the client's last message; what proves the server in return, or `None` if the client proved nothing.
    pub(crate) fn finish(&self, message: &str) -> Option<String> {
        let (binding, rest) = field(message, "c")?;
        let (nonce, _) = field(rest, "r")?;
        let (without_proof, proof) = message.rsplit_once(",p=")?;
        if binding != self.binding || nonce != self.nonce {
            return None;
        }
        let hash = self.credential.hash;
        let proof = STANDARD.decode(proof).ok()?;
        if proof.len() != hash.key_bytes() {
            return None;
        }
        let said = format!(
            "{},{},{without_proof}",
            self.client_first_bare, self.server_first
        );
        let signature = hash.hmac(&self.credential.stored_key, said.as_bytes());
        let stored_key = hash.digest(&xor(&proof, &signature));
        if !bool::from(stored_key.ct_eq(&self.credential.stored_key)) {
            return None;
        }
        let signature = hash.hmac(&self.credential.server_key, said.as_bytes());
        Some(format!("v={}", STANDARD.encode(signature)))
    }
}

/// The client, between its messages.
#[derive(Debug)]
pub(crate) struct Client {
    hash: Hash,
    nonce: String,
    first_bare: String,
}

/// What is behind this in a client's first message.
const GS2_HEADER: &str = "n,,";

impl Client {
    /// Begins; with the first message.
    pub(crate) fn start(hash: Hash, name: &str, nonce: String) -> (Self, String) {
        let first_bare = format!("n={name},r={nonce}");
        let message = format!("{GS2_HEADER}{first_bare}");
        let client = Self {
            hash,
            nonce,
            first_bare,
        };
        (client, message)
    }

    /// Takes the server's first message: the client's last one, and what the server has to answer. `None` if it makes no sense.
    pub(crate) fn prove(&self, server_first: &str, password: &str) -> Option<(String, String)> {
        let (nonce, rest) = field(server_first, "r")?;
        let (salt, rest) = field(rest, "s")?;
        let (iterations, _extensions) = field(rest, "i")?;
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return None;
        }
        let iterations = iterations.parse().ok()?;
        if !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
            return None;
        }
        let salt = STANDARD.decode(salt).ok()?;
        let hash = self.hash;
        let (client_key, server_key) = hash.keys(password.as_bytes(), &salt, iterations);
        let without_proof = format!("c={},r={nonce}", STANDARD.encode(GS2_HEADER));
        let said = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = hash.hmac(&hash.digest(&client_key), said.as_bytes());
        let proof = STANDARD.encode(xor(&client_key, &signature));
        let expected = STANDARD.encode(hash.hmac(&server_key, said.as_bytes()));
        Some((
            format!("{without_proof},p={proof}"),
            format!("v={expected}"),
        ))
    }
}

fn xor(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const SERVER_FIRST: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_LAST: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const PROOF: &str = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_LAST: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn pencil(_: &str) -> Credential {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Credential::derived(Hash::Sha256, b"pencil", salt, 4096)
    }

    /// RFC 7677, section 3.
    #[test]
    fn both_sides_say_what_the_rfc_says() {
        let (client, first) = Client::start(Hash::Sha256, "user", CLIENT_NONCE.to_owned());
        assert_eq!(first, CLIENT_FIRST);
        let server = Server::start(&first, SERVER_NONCE, pencil).unwrap();
        assert_eq!(server.name, "user");
        assert_eq!(server.acts_for, None);
        assert_eq!(server.server_first, SERVER_FIRST);
        let (last, expected) = client.prove(&server.server_first, "pencil").unwrap();
        assert_eq!(last, CLIENT_LAST);
        assert_eq!(expected, SERVER_LAST);
        assert_eq!(server.finish(&last).as_deref(), Some(SERVER_LAST));
        let (wrong, _) = client.prove(&server.server_first, "pencils").unwrap();
        assert_eq!(server.finish(&wrong), None);
    }

    #[test]
    fn what_is_no_first_message_is_refused() {
        let starts = |message: &str| Server::start(message, SERVER_NONCE, pencil);
        assert!(starts("y,,n=user,r=x").is_some());
        assert!(starts("n,,n=user,r=x,tokenauth=true").is_some());
        let acting = starts("n,a=other,n=user,r=x").unwrap();
        assert_eq!(acting.acts_for.as_deref(), Some("other"));
        for message in [
            "",
            "n",
            "n,",
            "n,,",
            "n,,n=user",
            "n,,n=user,r=",
            "n,,r=x,n=user",
            "n,b=other,n=user,r=x",
            "p=tls-unique,,n=user,r=x",
            "n,,m=1,n=user,r=x",
            "x,,n=user,r=x",
        ] {
            assert!(starts(message).is_none(), "{message}");
        }
    }

    /// Each changed or missing byte of the last message, but for base64 that says the same.
    #[test]
    fn no_other_last_message_proves_anything() {
        let server = Server::start(CLIENT_FIRST, SERVER_NONCE, pencil).unwrap();
        for at in 0..CLIENT_LAST.len() {
            let bytes = CLIENT_LAST.as_bytes();
            let changed = [&bytes[..at], &[bytes[at] ^ 1], &bytes[at + 1..]].concat();
            let less = [&bytes[..at], &bytes[at + 1..]].concat();
            for other in [changed, less, bytes[..at].to_vec()] {
                let other = String::from_utf8(other).unwrap();
                assert_eq!(server.finish(&other), None, "{other}");
            }
        }
    }

    /// Whoever knows the password proves it for this exchange, begun with this header, and for no other.
    #[test]
    fn a_right_proof_of_something_else_proves_nothing() {
        let server = Server::start(CLIENT_FIRST, SERVER_NONCE, pencil).unwrap();
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let (client_key, _) = Hash::Sha256.keys(b"pencil", &salt, 4096);
        let proved = |without_proof: &str| {
            let said = format!("n=user,r={CLIENT_NONCE},{SERVER_FIRST},{without_proof}");
            let stored_key = Hash::Sha256.digest(&client_key);
            let signature = Hash::Sha256.hmac(&stored_key, said.as_bytes());
            let proof = STANDARD.encode(xor(&client_key, &signature));
            server.finish(&format!("{without_proof},p={proof}"))
        };
        let nonce = format!("{CLIENT_NONCE}{SERVER_NONCE}");
        assert!(proved(&format!("c=biws,r={nonce}")).is_some());
        assert!(proved(&format!("c=biws,r={nonce},x=extension")).is_some());
        assert_eq!(proved(&format!("c=biws,r={CLIENT_NONCE}")), None);
        assert_eq!(proved(&format!("c=biws,r={nonce}x")), None);
        let longer = [STANDARD.decode(PROOF).unwrap(), vec![0]].concat();
        let longer = format!("c=biws,r={nonce},p={}", STANDARD.encode(longer));
        assert_eq!(server.finish(&longer), None);
        for header in ["y,,", "n,a=user,", "p=tls-unique,,"] {
            let binding = STANDARD.encode(header);
            assert_eq!(proved(&format!("c={binding},r={nonce}")), None, "{header}");
        }
    }

    #[test]
    fn a_client_trusts_no_server_that_goes_its_own_way() {
        let (client, _) = Client::start(Hash::Sha256, "user", CLIENT_NONCE.to_owned());
        for message in [
            "",
            "r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "r=anothernonceanothernonce,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "r=rOprNGfwEbeRWgbNEkqOmore,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1",
            "r=rOprNGfwEbeRWgbNEkqOmore,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4000000000",
            "r=rOprNGfwEbeRWgbNEkqOmore,s=!,i=4096",
            "e=other-error",
        ] {
            assert!(client.prove(message, "pencil").is_none(), "{message}");
        }
    }
}
