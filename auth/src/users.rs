//! The file of users, for people and programs alike: a line for each user and mechanism.
//!
//! ```text
//! # name  mechanism  iterations  salt  stored key  server key (base64)
//! alice SCRAM-SHA-256 16384 3xq... fP0... Zk9...
//! alice SCRAM-SHA-512 16384 aG1... 0Sd... mC4...
//! ```
//!
//! Fields are parted by spaces or tabs; empty lines and those that begin with `#` say nothing. It is replaced as a whole, by renaming.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::credential::{Credential, Hash, MAX_ITERATIONS, MIN_ITERATIONS, PasswordError};
use crate::name::UserName;

const HEADING: &str =
    "# name  mechanism  iterations  salt  stored key  server key; written by `basalt user`\n";
/// Bytes of a file that is read: some 100,000 users.
const MAX_FILE_BYTES: u64 = 64 << 20;
const MIN_SALT_BYTES: usize = 8;
const MAX_SALT_BYTES: usize = 256;

/// Why a file of users could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsersError {
    /// The system failed.
    #[error("cannot {what} the file of users {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A line makes no sense.
    #[error("line {line} of the file of users {} makes no sense: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1 on.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// It is larger than any file of users.
    #[error("the file of users {} has more than {MAX_FILE_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

/// Users and their credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users {
    of: BTreeMap<UserName, BTreeMap<Hash, Credential>>,
}

impl Users {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`UsersError`]; that there is no such file is one.
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        let failed = |source| UsersError::Io {
            what: "read",
            path: path.to_owned(),
            source,
        };
        // What is no file may keep a reader waiting for ever.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("it is no file")));
        }
        let mut file = File::open(path).map_err(failed)?.take(MAX_FILE_BYTES + 1);
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(UsersError::TooLarge {
                path: path.to_owned(),
            });
        }
        Self::parse(&text).map_err(|(line, why)| UsersError::Line {
            path: path.to_owned(),
            line,
            why,
        })
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut users = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, credential) = parse_line(line).map_err(|why| (index + 1, why))?;
            let hash = credential.hash;
            let of = users.of.entry(name).or_default();
            if of.insert(hash, credential).is_some() {
                let why = format!("it is the user's second line for {}", hash.mechanism());
                return Err((index + 1, why));
            }
        }
        Ok(users)
    }

    /// Replaces a file, or makes it, so that a reader finds the old or the new one, after a power loss too. A new one only its owner may
    /// read; one that was there keeps owner, group and mode, so that a server which could read it still can.
    ///
    /// # Errors
    /// See [`UsersError`].
    pub fn write(&self, path: &Path) -> Result<(), UsersError> {
        let replace = || {
            let folder = folder_of(path);
            // Such a file is made for its owner alone.
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(self.text().as_bytes())?;
            if let Ok(before) = fs::metadata(path) {
                let now = file.as_file().metadata()?;
                if (now.uid(), now.gid()) != (before.uid(), before.gid()) {
                    fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
                }
                file.as_file().set_permissions(before.permissions())?;
            }
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)?;
            File::open(folder)?.sync_all()
        };
        replace().map_err(|source| UsersError::Io {
            what: "write",
            path: path.to_owned(),
            source,
        })
    }

    /// Reads a file, or begins with nobody if there is none, changes it, and writes it if anything changed. Nobody else who calls this
    /// changes it meanwhile.
    ///
    /// # Errors
    /// See [`UsersError`], and whatever `change` says.
    pub fn change<T, E: From<UsersError>>(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let path = &real_path(path).map_err(|source| UsersError::Io {
            what: "find",
            path: path.to_owned(),
            source,
        })?;
        let folder = folder_of(path);
        let lock = File::open(folder).and_then(|folder| {
            folder.lock()?;
            Ok(folder)
        });
        let _lock = lock.map_err(|source| UsersError::Io {
            what: "lock the folder of",
            path: path.to_owned(),
            source,
        })?;
        let before = match path.try_exists() {
            Ok(false) => Self::default(),
            _ => Self::read(path)?,
        };
        let mut users = before.clone();
        let changed = change(&mut users)?;
        if users != before {
            users.write(path)?;
        }
        Ok(changed)
    }

    fn text(&self) -> String {
        let mut text = HEADING.to_owned();
        for (name, credentials) in &self.of {
            for (hash, credential) in credentials {
                let [salt, stored, server] = [
                    &credential.salt,
                    &credential.stored_key,
                    &credential.server_key,
                ]
                .map(|bytes| STANDARD.encode(bytes));
                let (mechanism, iterations) = (hash.mechanism(), credential.iterations);
                // Writing to a string does not fail.
                let _ = writeln!(
                    text,
                    "{name} {mechanism} {iterations} {salt} {stored} {server}"
                );
            }
        }
        text
    }

    /// Gives a user a password, for every mechanism; whether the user is new.
    ///
    /// # Errors
    /// See [`PasswordError`].
    pub fn set(&mut self, name: UserName, password: &str) -> Result<bool, PasswordError> {
        let mut credentials = BTreeMap::new();
        for hash in Hash::ALL {
            credentials.insert(hash, Credential::of(hash, password)?);
        }
        Ok(self.of.insert(name, credentials).is_none())
    }

    /// Takes a user out; whether there was one.
    pub fn remove(&mut self, name: &UserName) -> bool {
        self.of.remove(name).is_some()
    }

    /// The names, in order, with the mechanisms of each; everybody has `PLAIN` too.
    pub fn iter(&self) -> impl Iterator<Item = (&UserName, Vec<&'static str>)> {
        let mechanisms =
            |of: &BTreeMap<Hash, Credential>| of.keys().map(|hash| hash.mechanism()).collect();
        self.of.iter().map(move |(name, of)| (name, mechanisms(of)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Iterations and bytes of salt of the first user that has a credential for this.
    pub(crate) fn looks(&self, hash: Hash) -> Option<(u32, usize)> {
        let first = self.of.values().find_map(|of| of.get(&hash))?;
        // More is not made for nobody than an HMAC gives.
        Some((first.iterations, first.salt.len().min(64)))
    }

    pub(crate) fn credential(&self, name: &str, hash: Hash) -> Option<&Credential> {
        self.of.get(&UserName::new(name).ok()?)?.get(&hash)
    }

    /// Any credential of the user, to check a password against.
    pub(crate) fn any_credential(&self, name: &str) -> Option<&Credential> {
        self.of.get(&UserName::new(name).ok()?)?.values().next()
    }
}

/// Where the file is, or is to be: what a link leads to, not the link.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            Ok(path.to_owned())
        }
        found => found,
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn parse_line(line: &str) -> Result<(UserName, Credential), String> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[name, mechanism, iterations, salt, stored_key, server_key] = &fields[..] else {
        return Err(format!("it has {} fields, not 6", fields.len()));
    };
    let name = UserName::new(name).map_err(|error| error.to_string())?;
    let hash = Hash::ALL
        .into_iter()
        .find(|hash| hash.mechanism() == mechanism)
        .ok_or("the mechanism is neither SCRAM-SHA-256 nor SCRAM-SHA-512")?;
    let iterations = iterations
        .parse()
        .ok()
        .filter(|iterations| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(iterations))
        .ok_or_else(|| format!("there are {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations"))?;
    let bytes = |field: &str, what: &str| {
        STANDARD
            .decode(field)
            .map_err(|error| format!("the {what} is not base64: {error}"))
    };
    let salt = bytes(salt, "salt")?;
    if !(MIN_SALT_BYTES..=MAX_SALT_BYTES).contains(&salt.len()) {
        return Err(format!(
            "the salt has {} bytes, not {MIN_SALT_BYTES} to {MAX_SALT_BYTES}",
            salt.len()
        ));
    }
    let key = |field: &str, what: &str| {
        let key = bytes(field, what)?;
        match key.len() == hash.key_bytes() {
            true => Ok(key),
            false => Err(format!(
                "the {what} has {} bytes, not {}",
                key.len(),
                hash.key_bytes()
            )),
        }
    };
    let credential = Credential {
        hash,
        iterations,
        salt,
        stored_key: key(stored_key, "stored key")?,
        server_key: key(server_key, "server key")?,
    };
    Ok((name, credential))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The credentials of `pencil` under fixed salts, as the file has them.
    const GOLDEN: &str = "\
# name  mechanism  iterations  salt  stored key  server key; written by `basalt user`
user SCRAM-SHA-256 4096 W22ZaJ0SNY7soEsUEjb6gQ== WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY= wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=
";

    fn golden() -> Users {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let credential = Credential::derived(Hash::Sha256, b"pencil", salt, 4096);
        let mut users = Users::default();
        users.of.insert(
            UserName::new("user").unwrap(),
            BTreeMap::from([(Hash::Sha256, credential)]),
        );
        users
    }

    #[test]
    fn the_file_is_as_it_was_agreed_on() {
        assert_eq!(golden().text(), GOLDEN);
        assert_eq!(Users::parse(GOLDEN).unwrap(), golden());
        let spaced = GOLDEN.replace(' ', "\t ") + "\n\n  # more\n";
        assert_eq!(Users::parse(&spaced).unwrap(), golden());
    }

    #[test]
    fn what_is_written_is_read_and_only_the_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let mut users = golden();
        let alice = UserName::new("alice").unwrap();
        assert!(users.set(alice.clone(), "one").unwrap());
        assert!(!users.set(alice.clone(), "two").unwrap());
        users.write(&path).unwrap();
        assert_eq!(Users::read(&path).unwrap(), users);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let listed: Vec<_> = users.iter().map(|(name, of)| (name.as_str(), of)).collect();
        let both = vec!["SCRAM-SHA-256", "SCRAM-SHA-512"];
        assert_eq!(listed, [("alice", both), ("user", vec!["SCRAM-SHA-256"])]);
        assert!(users.any_credential("alice").unwrap().verifies(b"two"));
        assert!(!users.any_credential("alice").unwrap().verifies(b"one"));
        assert!(users.remove(&alice));
        assert!(!users.remove(&alice));
        users.write(&path).unwrap();
        assert_eq!(Users::read(&path).unwrap(), golden());
        // A link leads to the file, which keeps its mode.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let eve = UserName::new("eve").unwrap();
        let added = Users::change(&link, |users| {
            Ok::<_, UsersError>(users.set(eve.clone(), "apple").unwrap())
        });
        assert!(added.unwrap());
        assert!(link.is_symlink());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(Users::read(&path).unwrap().remove(&eve));
        fs::remove_file(&path).unwrap();
        let dangling = Users::change(&link, |_| Ok::<_, UsersError>(()));
        assert!(matches!(dangling, Err(UsersError::Io { .. })));
        fs::remove_file(link).unwrap();
        golden().write(&path).unwrap();
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "nothing else is left in the folder");
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named() {
        let [_, line] = GOLDEN.lines().collect::<Vec<_>>()[..] else {
            panic!()
        };
        let broken = [
            (line.replace("user", "us,er"), "a user's name"),
            (line.replace("SHA-256", "SHA-1"), "neither"),
            (line.replace("4096", "4095"), "iterations"),
            (line.replace("4096", "1000001"), "iterations"),
            (line.replace("W22Z", "W2 2Z"), "7 fields"),
            (line.replace("W22Z", "W2_Z"), "not base64"),
            (
                line.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "AAAA"),
                "salt has 3",
            ),
            (line.replace("WG5d8oPm", ""), "stored key has 26"),
            (line.replace("wfPLwcE6", ""), "server key has 26"),
            (format!("{line}\n{line}"), "second line"),
        ];
        for (text, expected) in broken {
            let (_, why) = Users::parse(&text).unwrap_err();
            assert!(why.contains(expected), "{why} for {text}");
        }
        let error = Users::parse(&format!("# one\n\n{}", line.replace("4096", "x"))).unwrap_err();
        assert_eq!(error.0, 3);
    }
}
