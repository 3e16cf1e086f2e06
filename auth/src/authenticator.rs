//! What a server asks: the users of a file that is read again when it has changed.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::credential::{Credential, Hash, fill_random};
use crate::exchange::Exchange;
use crate::name::UserName;
use crate::tokens;
use crate::users::{Users, UsersError};

/// Go's Flight client, and with it ADBC, leaves the padding out.
const BASIC: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Logins that are remembered; then they are all forgotten.
const MAX_KNOWN: usize = 4_096;

/// Who may come in. Cheap to clone.
#[derive(Clone)]
pub struct Authenticator {
    shared: Arc<Shared>,
}

/// Who somebody is who showed a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Who.
    pub user: UserName,
    /// What may be shown the next time.
    pub token: String,
}

pub(crate) struct Shared {
    path: PathBuf,
    pub(crate) secret: [u8; 32],
    users: RwLock<Arc<Users>>,
    /// Held by whoever looks at the file.
    seen: Mutex<Seen>,
    turns: Arc<Semaphore>,
    /// Codes of names and passwords that were found right, so that these need no turn again.
    known: Mutex<HashSet<[u8; 32]>>,
}

/// What was last found at the path.
struct Seen {
    /// Of the file whose content was judged last; none before there was one.
    judged: Option<Stamp>,
    /// Whether the log says already that it cannot be read.
    complained: bool,
}

/// What tells that a file is another one, was written to, or may be read by others than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator")
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    /// Reads the file of users. One without users is taken: nobody comes in until there are some.
    ///
    /// # Errors
    /// The file is not there, or makes no sense.
    pub fn open(path: &Path) -> Result<Self, UsersError> {
        let judged = Stamp::of(path).ok();
        let users = Users::read(path)?;
        if users.is_empty() {
            warn!(path = %path.display(), "the file of users names nobody: add one with `basalt user add`");
        }
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.mode());
        if mode & 0o044 > 0 {
            warn!(path = %path.display(), "others may read the file of users, and try guesses on it: `chmod 600` it");
        }
        let mut secret = [0; 32];
        fill_random(&mut secret);
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            secret,
            users: RwLock::new(Arc::new(users)),
            seen: Mutex::new(Seen {
                judged,
                complained: false,
            }),
            turns: Arc::new(Semaphore::new(1)),
            known: Mutex::default(),
        });
        Ok(Self { shared })
    }

    /// Begins an exchange; `None` if there is no such mechanism (see [`crate::MECHANISMS`]).
    pub async fn exchange(&self, mechanism: &str) -> Option<Exchange> {
        self.refresh().await;
        Exchange::start(&self.shared, mechanism)
    }

    /// Who shows this value of an `authorization` header: `Basic` with name and password, or `Bearer` with a token from here.
    pub async fn identify(&self, header: &str) -> Option<Identity> {
        let shown = Shown::of(header)?;
        self.refresh().await;
        let (user, credential) = match shown {
            Shown::Token(claim) => {
                let users = self.shared.users();
                let credential = users.any_credential(&claim.name)?.clone();
                let user = UserName::new(&claim.name).ok()?;
                claim
                    .holds(&self.shared.secret, &credential)
                    .then_some((user, credential))?
            }
            Shown::Password { name, password } => self.shared.verified(&name, &password).await?,
        };
        // Of the credential that was shown to be right: it may be another one by now.
        let token = tokens::make(&self.shared.secret, user.as_str(), &credential);
        Some(Identity { user, token })
    }

    /// Reads the file if it is not the one that was read last.
    async fn refresh(&self) {
        let shared = Arc::clone(&self.shared);
        // A panic in there leaves what was read before.
        let _ = tokio::task::spawn_blocking(move || shared.refresh()).await;
    }
}

/// What a header says.
enum Shown {
    Token(tokens::Claim),
    Password { name: String, password: String },
}

impl Shown {
    fn of(header: &str) -> Option<Self> {
        let (scheme, shown) = header.split_once(' ')?;
        let shown = shown.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return tokens::Claim::of(shown).map(Self::Token);
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let decoded = String::from_utf8(BASIC.decode(shown).ok()?).ok()?;
        let (name, password) = decoded.split_once(':')?;
        Some(Self::Password {
            name: name.to_owned(),
            password: password.to_owned(),
        })
    }
}

impl Shared {
    pub(crate) fn users(&self) -> Arc<Users> {
        Arc::clone(&self.users.read())
    }

    /// The user of that name and password, and the credential that says so (AUTH-3).
    pub(crate) async fn verified(
        self: &Arc<Self>,
        name: &str,
        password: &str,
    ) -> Option<(UserName, Credential)> {
        let users = self.users();
        let found = users.any_credential(name).cloned();
        let code = found
            .as_ref()
            .map(|credential| tokens::known(&self.secret, name, password, credential));
        if let Some((code, credential)) = code.zip(found.clone())
            && self.known.lock().contains(&code)
        {
            return Some((UserName::new(name).ok()?, credential));
        }
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        // For a name that is none it takes as long.
        let credential = found
            .clone()
            .unwrap_or_else(|| Credential::of_nobody(&users, Hash::Sha256, name, &self.secret));
        let password = password.to_owned();
        let verifying = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            credential.verifies(password.as_bytes())
        });
        if !verifying.await.ok()? {
            return None;
        }
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.extend(code);
        Some((UserName::new(name).ok()?, found?))
    }

    /// Looks whether the file is another one, and reads it. Whoever comes while somebody else does goes on with what is there.
    fn refresh(&self) {
        let Some(mut seen) = self.seen.try_lock() else {
            return;
        };
        // Before it is read: what is written meanwhile is found the next time.
        let stamp = Stamp::of(&self.path).ok();
        if stamp.is_some() && stamp == seen.judged {
            return;
        }
        match Users::read(&self.path) {
            Ok(users) => {
                info!(path = %self.path.display(), users = users.iter().count(), "the file of users was read again");
                *self.users.write() = Arc::new(users);
                seen.judged = stamp;
                seen.complained = false;
            }
            Err(error) => {
                // What cannot be read may be read the next time; what makes no sense is to become another file first.
                let may_pass = matches!(error, UsersError::Io { .. });
                if !(may_pass && seen.complained) {
                    let cause = std::error::Error::source(&error)
                        .map(|source| format!(": {source}"))
                        .unwrap_or_default();
                    warn!("{error}{cause}; the users that were read before still count");
                }
                seen.complained = may_pass;
                if !may_pass {
                    seen.judged = stamp;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
