//! Bearer tokens: what a client that proved its password once may show instead of it.
//!
//! | token, before base64url | bytes | |
//! |---|---|---|
//! | code | 32 | HMAC-SHA-256 of the rest and of the user's stored key, by a secret that this process alone knows |
//! | name | the rest | of the user |
//!
//! So nothing is kept of tokens, and they end with the process, with the user, and with the password.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::credential::Credential;

const CODE_BYTES: usize = 32;

fn code(secret: &[u8; 32], name: &str, credential: &Credential) -> Hmac<Sha256> {
    <Hmac<Sha256>>::new_from_slice(secret)
        .expect("any length is a key")
        .chain_update(b"bearer\0")
        // As long for each hash: no name can look like the end of a key.
        .chain_update([credential.hash as u8])
        .chain_update(&credential.stored_key)
        .chain_update(name)
}

pub(crate) fn make(secret: &[u8; 32], name: &str, credential: &Credential) -> String {
    let mut token = code(secret, name, credential)
        .finalize()
        .into_bytes()
        .to_vec();
    token.extend_from_slice(name.as_bytes());
    URL_SAFE_NO_PAD.encode(token)
}

/// What stands for a name and its password in the server's memory.
pub(crate) fn known(
    secret: &[u8; 32],
    name: &str,
    password: &str,
    credential: &Credential,
) -> [u8; CODE_BYTES] {
    <Hmac<Sha256>>::new_from_slice(secret)
        .expect("any length is a key")
        .chain_update(b"known\0")
        .chain_update([credential.hash as u8])
        .chain_update(&credential.stored_key)
        .chain_update(name.len().to_be_bytes())
        .chain_update(name)
        .chain_update(password)
        .finalize()
        .into_bytes()
        .into()
}

/// What a token says, before it is believed.
#[derive(Debug)]
pub(crate) struct Claim {
    code: [u8; CODE_BYTES],
    pub(crate) name: String,
}

impl Claim {
    pub(crate) fn of(token: &str) -> Option<Self> {
        let token = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (code, name) = token.split_first_chunk()?;
        Some(Self {
            code: *code,
            name: String::from_utf8(name.to_vec()).ok()?,
        })
    }

    pub(crate) fn holds(&self, secret: &[u8; 32], credential: &Credential) -> bool {
        // Compares in constant time.
        code(secret, &self.name, credential)
            .verify_slice(&self.code)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::Hash;

    #[test]
    fn a_token_holds_for_its_name_password_and_server_and_no_bit_of_it_may_differ() {
        let credential =
            |password: &[u8]| Credential::derived(Hash::Sha256, password, vec![7; 24], 4096);
        let own = credential(b"own");
        let token = make(&[1; 32], "alice", &own);
        let claim = Claim::of(&token).unwrap();
        assert_eq!(claim.name, "alice");
        assert!(claim.holds(&[1; 32], &own));
        assert!(!claim.holds(&[2; 32], &own));
        assert!(!claim.holds(&[1; 32], &credential(b"other")));
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let claim = Claim::of(&URL_SAFE_NO_PAD.encode(bytes));
            assert!(!claim.is_some_and(|claim| claim.holds(&[1; 32], &own)));
        }
        for strange in ["", "anonymous", "====", &token[..40]] {
            assert!(Claim::of(strange).is_none(), "{strange:?}");
        }
    }
}
