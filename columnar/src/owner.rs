//! Who may write to a store that other servers can reach.
//!
//! Claims are objects, `@owner/<20-digit epoch>.json`; no topic has such a name. Whoever made the highest is the owner. The data
//! folder remembers its own in the file `cold-store`:
//!
//! ```text
//! {"format":1,"epoch":7,"store":"<16 hex>","nonce":"<16 hex>"}                                     a claim
//! {"format":1,"url":"s3://..","store":"<16 hex>","epoch":7,"nonces":["<16 hex>"],"place":".."}     cold-store
//! ```
//!
//! - **COL-30**: a start claims the store before it lists anything in it, and every commit looks at the claims before anything is
//!   released or deleted because of it. So an object that is there when a new owner lists is either named by a manifest that it
//!   sees, or its writer finds out, and keeps its records hot.
//! - **COL-31**: a data folder claims only a store that has no claim, or whose highest is its own: never that of another folder,
//!   nor another store than the one its cold records are in.
//! - **COL-32**: a folder that is not where it was when it last claimed (copied, moved, the machine restarted) may have a twin that
//!   runs. Its start commits a manifest for every partition before it deletes or releases anything: whatever the twin commits from
//!   then on collides, and fences the twin (COL-4).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use basalt_log::{Disk, Log, replace_file};
use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::store::{
    ColdStore, NEEDS_CONDITIONAL_PUTS, StoreError, UnusableStore, explained, nonce,
};

const FORMAT: u32 = 1;
/// The folder of claims. Topics' names have no `@`.
const CLAIMS: &str = "@owner";
/// The data folder's own memory.
const RECORD: &str = "cold-store";

/// Why a store may not be used by this data folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The data folder's cold records are elsewhere.
    #[error(
        "the cold records of {} are in {recorded}, not in {store}: set `cold.store` to where they are, or, if every object was moved \
         (those below `@owner` too), to where they are now", folder.display()
    )]
    Elsewhere {
        /// The data folder.
        folder: PathBuf,
        /// Where its cold records are.
        recorded: String,
        /// What it was started with.
        store: String,
    },
    /// Another data folder writes to the store.
    #[error(
        "{store} is used by another data folder, which made claim {epoch} there: give this one ({}) a prefix of its own. \
         If the other is a copy of it, only one of them may go on", folder.display()
    )]
    Taken {
        /// The data folder.
        folder: PathBuf,
        /// The store.
        store: String,
        /// The other's claim.
        epoch: u64,
    },
    /// Another server has claimed the store since: this one writes there no more.
    #[error(
        "another server has taken over {store} (claim {found}, ours is {epoch}): its data folder is a copy of this one. What is \
         appended here stays hot; stop one of the two"
    )]
    Superseded {
        /// The store.
        store: String,
        /// The other's claim.
        found: u64,
        /// Ours.
        epoch: u64,
    },
    /// The file that remembers the store cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Record {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file that remembers the store, or a claim, is damaged.
    #[error("{path} is damaged: {what}; restore it from a copy")]
    Damaged {
        /// The file or object.
        path: String,
        /// How it shows.
        what: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    format: u32,
    epoch: u64,
    store: String,
    nonce: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    format: u32,
    url: String,
    store: String,
    /// The last claim that is known to have been made; 0 while there is none.
    epoch: u64,
    /// Those of the last claim, and of one that was perhaps made.
    nonces: Vec<String>,
    /// Where the folder was when it claimed: see [`place`].
    place: String,
}

/// A claim that was made.
#[derive(Debug)]
pub(crate) struct Owner {
    store: ColdStore,
    epoch: u64,
    /// The highest claim of somebody else that was seen; 0 for none.
    superseded_by: AtomicU64,
}

/// A claim that was made, as long as what it is for is not finished.
#[derive(Debug)]
pub(crate) struct Claimed {
    owner: Owner,
    unfinished: Unfinished,
}

/// What is to be remembered of it.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// The folder may have a twin (COL-32).
    pub(crate) may_have_twin: bool,
    record: Record,
}

impl Owner {
    /// Claims `store` for the data folder of `log`, if others can reach it (COL-30, COL-31).
    ///
    /// # Errors
    /// [`OwnerError`], but for [`OwnerError::Superseded`].
    pub(crate) async fn claim(store: &ColdStore, log: &Log) -> Result<Option<Claimed>, OwnerError> {
        let folder = log.config().data_dir.clone();
        // One that claimed nothing yet may still go anywhere.
        let recorded = read_record(log)?.filter(|record| record.epoch > 0 || store.is_shared());
        if !store.is_shared() {
            return match recorded {
                None => Ok(None),
                Some(record) => Err(OwnerError::Elsewhere {
                    folder,
                    recorded: record.url,
                    store: store.name().to_owned(),
                }),
            };
        }
        let unusable = |error| OwnerError::Store(explained(store, error));
        let highest = match epochs(store).await.map_err(unusable)?.into_iter().max() {
            None => None,
            Some(epoch) => Some(read_claim(store, epoch).await?),
        };
        let known = admit(recorded, highest.as_ref(), store, &folder)?;
        let place = place(log)?;
        let claim = Claim {
            format: FORMAT,
            epoch: highest.as_ref().map_or(1, |highest| highest.epoch + 1),
            store: known.store.clone(),
            nonce: nonce(),
        };
        let last = highest.map(|highest| highest.nonce);
        let pending = Record {
            url: store.name().to_owned(),
            nonces: last.into_iter().chain([claim.nonce.clone()]).collect(),
            ..known
        };
        // Before the claim: if its outcome is never known, the next start still knows it for its own.
        write_record(log, &pending)?;
        make(store, &claim).await.map_err(|error| match error {
            OwnerError::Store(error) => unusable(error),
            OwnerError::Taken { epoch, store, .. } => OwnerError::Taken {
                folder,
                store,
                epoch,
            },
            error => error,
        })?;
        trim(store, claim.epoch).await;
        let owner = Self {
            store: store.clone(),
            epoch: claim.epoch,
            superseded_by: AtomicU64::new(0),
        };
        let unfinished = Unfinished {
            may_have_twin: pending.epoch > 0 && pending.place != place,
            record: Record {
                epoch: claim.epoch,
                nonces: vec![claim.nonce],
                place,
                ..pending
            },
        };
        Ok(Some(Claimed { owner, unfinished }))
    }

    /// Looks whether somebody else has claimed the store (COL-30).
    ///
    /// # Errors
    /// [`OwnerError::Superseded`], then and from then on; [`OwnerError::Store`]: nobody knows.
    pub(crate) async fn check(&self) -> Result<(), OwnerError> {
        self.check_known()?;
        let found = epochs(&self.store).await?.into_iter().max().unwrap_or(0);
        if found > self.epoch {
            self.superseded_by.store(found, Ordering::Relaxed);
        }
        self.check_known()
    }

    /// As [`Owner::check`], by what was seen before.
    ///
    /// # Errors
    /// [`OwnerError::Superseded`].
    pub(crate) fn check_known(&self) -> Result<(), OwnerError> {
        match self.superseded_by.load(Ordering::Relaxed) {
            0 => Ok(()),
            found => Err(OwnerError::Superseded {
                store: self.store.name().to_owned(),
                found,
                epoch: self.epoch,
            }),
        }
    }
}

impl Claimed {
    pub(crate) fn split(self) -> (Unfinished, Owner) {
        (self.unfinished, self.owner)
    }
}

impl Unfinished {
    /// Remembers the claim, and where the folder is, once no twin can do harm any more.
    ///
    /// # Errors
    /// [`OwnerError::Record`]. The next start takes the claim for its own all the same.
    pub(crate) fn finish(self, log: &Log) -> Result<(), OwnerError> {
        write_record(log, &self.record)
    }
}

/// The record to go on from, if this folder may claim the store (COL-31).
fn admit(
    recorded: Option<Record>,
    highest: Option<&Claim>,
    store: &ColdStore,
    folder: &std::path::Path,
) -> Result<Record, OwnerError> {
    let elsewhere = |record: Record| OwnerError::Elsewhere {
        folder: folder.to_owned(),
        recorded: record.url,
        store: store.name().to_owned(),
    };
    let taken = |highest: &Claim| OwnerError::Taken {
        folder: folder.to_owned(),
        store: store.name().to_owned(),
        epoch: highest.epoch,
    };
    let fresh = || Record {
        format: FORMAT,
        url: store.name().to_owned(),
        store: nonce(),
        epoch: 0,
        nonces: Vec::new(),
        place: String::new(),
    };
    match (recorded, highest) {
        (None, None) => Ok(fresh()),
        (None, Some(highest)) => Err(taken(highest)),
        (Some(record), None) if record.epoch == 0 => Ok(fresh()),
        (Some(record), None) => Err(elsewhere(record)),
        (Some(record), Some(highest)) if record.nonces.contains(&highest.nonce) => Ok(record),
        (Some(record), Some(highest)) if record.epoch > 0 && record.store != highest.store => {
            Err(elsewhere(record))
        }
        (Some(_), Some(highest)) => Err(taken(highest)),
    }
}

/// Makes a claim, and finds out whether the store keeps it from being made again.
async fn make(store: &ColdStore, claim: &Claim) -> Result<(), OwnerError> {
    let path = claim_path(claim.epoch);
    // Numbers and hex digits: this cannot fail.
    let bytes = Bytes::from(serde_json::to_vec(claim).unwrap_or_default());
    if let Err(error) = store.put_new(&path, bytes.clone()).await {
        // Perhaps the answer was lost, or the client has tried twice and found itself.
        match read_claim(store, claim.epoch).await {
            Ok(there) if there.nonce == claim.nonce => {}
            Ok(there) => {
                return Err(OwnerError::Taken {
                    folder: PathBuf::new(),
                    store: store.name().to_owned(),
                    epoch: there.epoch,
                });
            }
            Err(_) => return Err(error.into()),
        }
    }
    match store.put_new(&path, bytes).await {
        Err(StoreError::Exists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
        // It has replaced the claim, with the same bytes.
        Ok(()) => Err(StoreError::Unusable(Box::new(UnusableStore {
            store: store.name().to_owned(),
            problem: "replaces objects although it is told not to",
            remedy: NEEDS_CONDITIONAL_PUTS,
            source: None,
        }))
        .into()),
    }
}

/// Deletes claims older than the one before `epoch`. What stays does no harm.
async fn trim(store: &ColdStore, epoch: u64) {
    let Ok(there) = epochs(store).await else {
        return;
    };
    for old in there.into_iter().filter(|old| old + 1 < epoch) {
        let _ = store.delete(&claim_path(old)).await;
    }
}

fn claim_path(epoch: u64) -> Path {
    Path::from_iter([CLAIMS, &format!("{epoch:020}.json")])
}

async fn epochs(store: &ColdStore) -> Result<Vec<u64>, StoreError> {
    let found = store.list(&Path::from(CLAIMS)).await?;
    let epoch = |path: &Path| crate::paths::manifest_version(path.filename()?);
    Ok(found.iter().filter_map(epoch).collect())
}

async fn read_claim(store: &ColdStore, epoch: u64) -> Result<Claim, OwnerError> {
    let path = claim_path(epoch);
    let bytes = store.get(&path).await?;
    let damaged = |what: String| OwnerError::Damaged {
        path: path.to_string(),
        what,
    };
    let claim: Claim =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if claim.format != FORMAT || claim.epoch != epoch || epoch == u64::MAX {
        return Err(damaged(format!(
            "it has format {} and epoch {}",
            claim.format, claim.epoch
        )));
    }
    Ok(claim)
}

fn record_path(log: &Log) -> PathBuf {
    log.config().data_dir.join(RECORD)
}

fn read_record(log: &Log) -> Result<Option<Record>, OwnerError> {
    let path = record_path(log);
    let failed = |source| OwnerError::Record {
        action: "read",
        path: path.clone(),
        source,
    };
    let bytes = match log.disk().open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.and_then(|file| file.read_all()).map_err(failed)?,
    };
    let damaged = |what: String| OwnerError::Damaged {
        path: path.display().to_string(),
        what,
    };
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if record.format != FORMAT {
        return Err(damaged(format!("it has format {}", record.format)));
    }
    Ok(Some(record))
}

/// The store that a data folder's cold records are in, if it is not the folder itself.
///
/// # Errors
/// The system's error, or `InvalidData` for a damaged record.
pub fn recorded_store(data_dir: &std::path::Path) -> io::Result<Option<String>> {
    match std::fs::read(data_dir.join(RECORD)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => {
            let record: Record = serde_json::from_slice(&bytes?)?;
            Ok((record.epoch > 0).then_some(record.url))
        }
    }
}

fn write_record(log: &Log, record: &Record) -> Result<(), OwnerError> {
    let path = record_path(log);
    let bytes = serde_json::to_vec(record).unwrap_or_default();
    let disk: &dyn Disk = log.disk().as_ref();
    replace_file(disk, &path, &bytes)
        .map(drop)
        .map_err(|source| OwnerError::Record {
            action: "write",
            path,
            source,
        })
}

/// What no copy of the folder has while the machine runs: which folder it is on this machine since it was started.
fn place(log: &Log) -> Result<String, OwnerError> {
    let folder = &log.config().data_dir;
    let found = std::fs::metadata(folder).map_err(|source| OwnerError::Record {
        action: "look at",
        path: folder.clone(),
        source,
    })?;
    Ok(format!(
        "{}/{}:{}",
        log.disk().boot_id(),
        found.dev(),
        found.ino()
    ))
}
